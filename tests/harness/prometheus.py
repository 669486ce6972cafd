"""A real Prometheus and a real Alertmanager, with the rules and examples of the product in a hurry."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from duly import monitoring
from harness.servers import RegistryServer

#: Every duration of the rules and examples is divided by this: 5 minutes become 5 seconds.
HURRY = 60
_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000}
# A range of an expression, or the whole value of a key.
_RANGE = re.compile(r"\[(\d+)([smh])\]")
_VALUE = re.compile(r"(?m)^((?: *- | *)(?:for|\w+_(?:wait|interval)): )(\d+)([smh])$")


def hurried(text: str) -> str:
    """A file of the product with all durations divided; nothing else is changed."""

    def shorter(number: str, unit: str) -> str:
        return f"{int(number) * _UNITS[unit] // HURRY}ms"

    text = _RANGE.sub(lambda found: f"[{shorter(found[1], found[2])}]", text)
    return _VALUE.sub(lambda found: found[1] + shorter(found[2], found[3]), text)


class PrometheusServer(RegistryServer):
    scheme = "prometheus"

    @classmethod
    def missing(cls) -> str | None:
        there = shutil.which("prometheus")
        return None if there else "Prometheus is not installed: run scripts/test-services as root"

    def configure(self, targets: Mapping[str, list[str]], *, alertmanager: int, key: str) -> None:
        """The example with other targets, by job; jobs that the example lacks are made like its duly-worker."""
        document: dict[str, Any] = yaml.safe_load(monitoring.text_of("prometheus"))
        # Not the example's divided, 250 ms: a busy machine would not answer within it.
        document["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "500ms"}
        document["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{alertmanager}"]
        examples = {job["job_name"]: job for job in document["scrape_configs"]}
        document["scrape_configs"] = [
            {
                **examples.get(name, examples["duly-worker"]),
                "job_name": name,
                "static_configs": [{"targets": ports, "labels": {"cluster": "main"}}],
            }
            for name, ports in targets.items()
        ]
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(document))
        (self.folder / "duly-rules.yml").write_text(hurried(monitoring.rules()))
        (self.folder / "duly-monitor-key").write_text(key)

    def _command(self) -> list[str]:
        return [
            "prometheus", f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/data",
            f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn",
        ]  # fmt: skip


class AlertmanagerServer(RegistryServer):
    scheme = "alertmanager"

    @classmethod
    def missing(cls) -> str | None:
        there = shutil.which("prometheus-alertmanager")
        return None if there else "Alertmanager is not installed: run scripts/test-services as root"

    def configure(self, *, webhook: str) -> None:
        """The example, whose placeholders become this address."""
        example = hurried(monitoring.text_of("alertmanager"))
        (self.folder / "alertmanager.yml").write_text(re.sub(r"http://127\.0\.0\.1:9099/\w+", webhook, example))

    def _command(self) -> list[str]:
        return [
            "prometheus-alertmanager", f"--config.file={self.folder}/alertmanager.yml",
            f"--storage.path={self.folder}/data", f"--web.listen-address=127.0.0.1:{self.port}",
            "--cluster.listen-address=", "--log.level=warn",
        ]  # fmt: skip


@contextmanager
def watching() -> Iterator[tuple[PrometheusServer, AlertmanagerServer]]:
    """The two, not started yet; the test is skipped where one is not installed."""
    for kind in (PrometheusServer, AlertmanagerServer):
        if reason := kind.missing():
            pytest.skip(reason)
    prometheus, alertmanager = PrometheusServer(), AlertmanagerServer()
    try:
        yield prometheus, alertmanager
    finally:
        for server in (prometheus, alertmanager):
            if (log := server.folder / "log").exists():
                print(f"--- {server.scheme}\n{Path(log).read_text()[-4000:]}")
            server.remove()
