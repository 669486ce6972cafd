"""Measures this tree beside a commit. Each ratio is this tree's figure by the commit's; above 1 this tree is better."""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path

from duly.store import embedded

ROOT = Path(__file__).parents[2]
PASSES = ("drain", "drain2", "submit", "lag")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-before ARGS=…", description=__doc__)
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("passes", nargs="*", default=["drain", "lag"], choices=PASSES, help="default: drain lag")
    parser.add_argument("--rounds", type=int, default=8, help="pairs of passes (default: 8)")
    parser.add_argument("--scale", type=float, default=0.5, help="amount of work in a pass (default: 0.5)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="duly-before-", ignore_cleanup_errors=True) as folder:
        before = _exported(given.commit, Path(folder))
        server = embedded.start(Path(folder) / "server")
        try:
            _compare(server.url, before, given)
        finally:
            server.release()


def _exported(commit: str, folder: Path) -> Path:
    """The source of a commit, in a folder for PYTHONPATH."""
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        sys.exit(f"{commit}: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder / "src"


def _compare(url: str, before: Path, given: argparse.Namespace) -> None:
    versions = {name: _Version(source, url, given.scale) for name, source in (("old", before), ("new", ROOT / "src"))}
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for number in range(given.rounds):
        for one_pass in given.passes:
            # Each is first in every other round, so that drift favours neither.
            order = ("old", "new") if number % 2 else ("new", "old")
            figures = {name: versions[name].measure(one_pass) for name in order}
            for figure, value in figures["new"].items():
                ratios[one_pass, figure].append(value / figures["old"][figure])
        print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
    for version in versions.values():
        version.end()
    for (one_pass, figure), found in ratios.items():
        error = statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else math.nan
        mean, median = statistics.mean(found), statistics.median(found)
        print(f"{one_pass:8} {figure:30} {mean:.3f} ± {error:.3f} (median {median:.3f}, {len(found)} pairs)")


class _Version:
    """A process that measures with one version's code."""

    def __init__(self, source: Path, url: str, scale: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "bench" / "before" / "one_pass.py"), url, str(scale)],
            env={**os.environ, "PYTHONPATH": str(source)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            sys.exit(f"the version in {source} does not start")

    def measure(self, one_pass: str) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{one_pass}\n")
        self._process.stdin.flush()
        figures: dict[str, float] = json.loads(self._process.stdout.readline())
        return figures

    def end(self) -> None:
        """Closes its input, so that it drops its databases and ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


if __name__ == "__main__":
    main()
