"""`Process`: a `duly` command in a process of its own, read line by line. `Ended`: the result of a command."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.processes import clean_environment, duly_command

# Generous: on a busy machine a Python process takes seconds to start. Nothing waits this long when all is well.
PATIENCE = 30.0


@dataclass(frozen=True)
class Ended:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Each line of the output as a JSON document."""
        return [json.loads(line) for line in self.out.splitlines()]


class Process:
    """A `duly` command as a real process, whose output is read as it comes."""

    def __init__(
        self, arguments: tuple[str, ...], environment: Mapping[str, str], folder: Path, *, by: Sequence[str] = ()
    ) -> None:
        """`by`: a program that starts the command, with the program's own arguments."""
        self.process = subprocess.Popen(
            [*by, *duly_command(*arguments)],
            env={**clean_environment(), **environment},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A group of its own, as a shell gives to a command, so that a test can press Ctrl-C on it.
            process_group=0,
        )
        self.pid = self.process.pid
        self.output: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_for(self, pattern: str, seconds: float = PATIENCE) -> re.Match[str]:
        """The next line that matches."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line with {pattern!r} within {seconds} s in:\n{self.said}") from None
            if line is None:
                self._lines.put(None)
                raise AssertionError(f"the process ended without a line with {pattern!r}:\n{self.said}")
            self.output.append(line)
            if found := re.search(pattern, line):
                return found

    def end(self, seconds: float = PATIENCE) -> int:
        """Waits until the process has ended by itself. Returns the exit code."""
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        while not self._lines.empty():
            if (line := self._lines.get()) is not None:
                self.output.append(line)
        self._lines.put(None)
        return code

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def press_ctrl_c(self) -> None:
        """Sends SIGINT to every process of the group, as a terminal does."""
        os.killpg(self.pid, signal.SIGINT)

    @property
    def said(self) -> str:
        return "\n".join(self.output)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
