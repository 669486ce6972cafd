"""Prometheus' own tool, and the names of metrics in its language."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: run scripts/test-services as root"
)
needs_amtool = pytest.mark.skipif(
    shutil.which("amtool") is None, reason="amtool is not installed: run scripts/test-services as root"
)
#: What processes of Duly tell about themselves. `_bucket`, `_sum` and `_count` belong to the histograms.
HISTOGRAMS = {
    "duly_schedule_lag_seconds", "duly_fire_lag_seconds", "duly_run_duration_seconds",
    "duly_api_request_duration_seconds",
}  # fmt: skip
_NAME = re.compile(r"(?<![\w:\"])(?:duly|process)_\w+(?!\")")


def check(tool: str, *arguments: str | Path) -> str:
    """The tool's output; the test fails if it finds something wrong."""
    done = subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def metrics_in(expression: str) -> set[str]:
    """The metrics that an expression reads, without those that a rule records."""
    return {_family(name) for name in _NAME.findall(expression)}


def _family(name: str) -> str:
    family = re.sub(r"_(bucket|sum|count)$", "", name)
    return family if family in HISTOGRAMS else name
