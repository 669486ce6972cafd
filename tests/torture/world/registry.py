"""One server of etcd or ZooKeeper, for worlds whose schedulers elect by it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from .network import Network, free_port, make_socket
from .proxy import Place

_JAR = Path("/usr/share/java/zookeeper.jar")


class Registry:
    """A registry that can be started, killed, paused and continued; its data on disk stay."""

    def __init__(self, kind: str, scratch: Path, network: Network, log: Path) -> None:
        if reason := missing(kind):
            raise RuntimeError(reason)
        self.kind = kind
        self.name = kind
        self.log = log
        self._network = network
        network.add(kind)
        self._folder = scratch / kind
        self._folder.mkdir()
        self._peer_port = free_port()
        self.place = Place(network.hub, network.host(kind), free_port())
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, host: str, port: int) -> str:
        """The value of DULY_COORDINATOR for this registry, reached at this host and port."""
        return f"etcd://{host}:{port}?prefix=/torture" if self.kind == "etcd" else f"zookeeper://{host}:{port}/torture"

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        if not self.alive():
            self._spawn()
        deadline = time.monotonic() + 60
        while not await self._answers():
            if not self.alive() or time.monotonic() > deadline:
                raise RuntimeError(f"{self.kind} does not start:\n{self.log.read_text(errors='replace')[-2000:]}")
            await asyncio.sleep(0.1)

    def _spawn(self) -> None:
        command = [*self._network.inside(self.name), "setpriv", "--pdeathsig", "KILL", *self._command()]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                # Debian's etcd reads its settings from the environment as well.
                env={name: value for name, value in os.environ.items() if not name.startswith("ETCD_")},
            )  # fmt: skip

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def empty(self) -> None:
        """Kills the server and deletes its data."""
        self.kill()
        shutil.rmtree(self._folder / "data", ignore_errors=True)

    def pause(self) -> None:
        if self._process is not None and self.alive():
            self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        if self._process is not None and self.alive():
            self._process.send_signal(signal.SIGCONT)

    async def _answers(self) -> bool:
        knock = make_socket(self.place.namespace)
        try:
            async with asyncio.timeout(2):
                await asyncio.get_running_loop().sock_connect(knock, (self.place.host, self.place.port))
        except OSError:
            return False
        finally:
            knock.close()
        return True

    def _command(self) -> list[str]:
        host = self.place.host
        if self.kind == "etcd":
            client, peer = f"http://{host}:{self.place.port}", f"http://{host}:{self._peer_port}"
            return [
                "etcd", "--data-dir", str(self._folder / "data"), "--listen-client-urls", client,
                "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                # etcd's shortest lease is one and a half election timeouts.
                "--initial-cluster", f"default={peer}", "--heartbeat-interval", "50", "--election-timeout", "500",
            ]  # fmt: skip
        settings = self._folder / "zoo.cfg"
        settings.write_text(
            f"tickTime=200\ndataDir={self._folder / 'data'}\nclientPort={self.place.port}\nclientPortAddress={host}\n"
            "admin.enableServer=false\nmaxClientCnxns=0\n"
        )
        # Options for a Java that starts fast and stays small.
        options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return ["java", *options, "-cp", str(_JAR), "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(settings)]


def missing(kind: str) -> str | None:
    """Why this registry cannot be started here; None if it can."""
    there = shutil.which("etcd") if kind == "etcd" else shutil.which("java") and _JAR.exists()
    return None if there else f"{kind} is not installed: run scripts/test-services as root"
