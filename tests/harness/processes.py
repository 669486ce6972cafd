"""Starts Duly's commands as processes, and reads the lines that their handlers left in the sink."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


def duly_command(*arguments: str) -> list[str]:
    """The command line of `duly` with this interpreter."""
    return [sys.executable, "-m", "duly.cli", *arguments]


def clean_environment() -> dict[str, str]:
    """This process's environment without any setting of Duly."""
    return {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}


class Spawn:
    """`spawn("worker", …)` starts that command of Duly in a process."""

    def __init__(self, folder: Path, sink: Path, database_url: str | None = None) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **clean_environment(),
            "DULY_LEADER_LEASE_SECONDS": "1",
            "DULY_WORKER_LEASE_SECONDS": "3",
            "DULY_LOG_LEVEL": "WARNING",
            "SINK": str(sink),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
        }
        if database_url is not None:
            self._environment["DULY_DATABASE_URL"] = database_url

    def __call__(
        self, command: str, *arguments: str, settings: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """`settings` are environment variables of this process alone."""
        if command == "worker":
            arguments = ("--app", "sink_app:app", "--quiet", *arguments)
        with (self._folder / f"{command}-{len(self._started)}.log").open("wb") as log:
            process = subprocess.Popen(
                duly_command(command, *arguments),
                env={**self._environment, **(settings or {})}, cwd=self._folder,
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self._started.append(process)
        return process

    def end(self) -> None:
        """Kills every process and prints the logs, which pytest shows if the test failed."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
        for process in self._started:
            process.wait()
        for log in sorted(self._folder.glob("*.log")):
            if text := log.read_text(errors="replace"):
                print(f"--- {log.name}\n{text[-4000:]}")


@dataclass(frozen=True)
class Line:
    """One line that a handler left in the sink."""

    run_id: str
    attempt: int
    token: str
    pid: int
    word: str
    at: float


def lines(sink: Path, word: str | None = None) -> list[Line]:
    found = []
    for line in sink.read_text().splitlines():
        run_id, attempt, token, pid, said, at = line.split()
        if word is None or said == word:
            found.append(Line(run_id, int(attempt), token, int(pid), said, float(at)))
    return found


def executions(sink: Path) -> Counter[str]:
    """The number of times each run was started."""
    return Counter(line.run_id for line in lines(sink, "started"))
