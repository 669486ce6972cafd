"""One process of Duly: started, killed, stopped, started again. All its starts share one log."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Literal

from .clock import Clock
from .network import Network
from .proxy import Proxy

Kind = Literal["scheduler", "worker", "api"]


class Node:
    def __init__(
        self,
        name: str,
        kind: Kind,
        *,
        number: int,
        network: Network,
        command: list[str],
        environment: dict[str, str],
        proxy: Proxy,
        registry_proxy: Proxy | None,
        clock: Clock,
        log: Path,
    ) -> None:
        self.name = name
        self.kind = kind
        self.number = number
        self.network = network
        self.proxy = proxy
        self.registry_proxy = registry_proxy
        self.clock = clock
        self.log = log
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        #: Whether the harness ended the process; otherwise it ended by itself.
        self.ended_on_purpose = True
        self.stopped = False
        self.starts = 0
        self.rss: list[tuple[float, int]] = []

    @property
    def namespace(self) -> str | None:
        """The name of the node's network namespace, if it has one."""
        inside = self.network.inside(self.name)
        return Path(inside[1].partition("=")[2]).name if inside else None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, if the process has ended."""
        return None if self._process is None else self._process.poll()

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the process, unless it is alive."""
        if self.alive():
            return
        self.starts += 1
        # The process must not outlive the harness, however the harness ends. The signal comes when the *thread* that
        # started the process ends, so nodes are started from the main thread only.
        command = [*self.network.inside(self.name), "setpriv", "--pdeathsig", "KILL", *self._command]
        with self.log.open("ab") as log:
            log.write(f"--- start {self.starts} at {time.time():.3f}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                command, env=self.clock.environment(self._environment), cwd=self.log.parent,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.ended_on_purpose = self.stopped = False

    def kill(self) -> None:
        """Kills the process with SIGKILL. It is not started again by itself."""
        self.ended_on_purpose = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self.stopped = False

    def stop_signal(self) -> None:
        """Stops the process with SIGSTOP: it exists, does nothing, and does not notice the pause afterwards."""
        self.stopped = self._send(signal.SIGSTOP)

    def continue_(self) -> None:
        self._send(signal.SIGCONT)
        self.stopped = False

    def terminate(self) -> None:
        """Sends SIGTERM, as a service manager does, and returns at once; `alive` says when the process has gone."""
        self.ended_on_purpose = True
        self._send(signal.SIGTERM)

    def rss_kb(self) -> int:
        """The resident memory in kB; 0 if the process does not run."""
        if self.alive():
            with contextlib.suppress(OSError, ValueError, IndexError):
                pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
                return pages * os.sysconf("SC_PAGE_SIZE") // 1024
        return 0

    def _send(self, what: signal.Signals) -> bool:
        if self._process is None or self._process.poll() is not None:
            return False
        self._process.send_signal(what)
        return True
