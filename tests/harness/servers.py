"""Real servers for tests: etcd, ZooKeeper and PgBouncer, each in a folder and on a port of its own.

The servers can be killed, stopped (SIGSTOP) and started again with their data on disk. `Wire` is a plain TCP forwarder,
with which one node alone loses its connection to a server.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from harness.listening import Listener, until_one_ends

# Debian keeps servers in /usr/sbin, which is not on every account's PATH.
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
_ZOOKEEPER_JAR = Path("/usr/share/java/zookeeper.jar")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RegistryServer(ABC):
    """A server process of the tests. Its data outlive `stop` and `start`."""

    scheme: str

    def __init__(self, *, quick: bool = True) -> None:
        """`quick`: with short ticks, for short leases; else with the server's defaults."""
        self.quick = quick
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"duly-{self.scheme}-"))
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @abstractmethod
    def missing(cls) -> str | None:
        """The reason why the server cannot be started here, or None."""

    @abstractmethod
    def _command(self) -> list[str]: ...

    def address(self, room: str, *, port: int | None = None) -> str:
        """The address in the form of DULY_COORDINATOR; `room` keeps tests apart."""
        host = f"127.0.0.1:{port or self.port}"
        return f"etcd://{host}?prefix=/{room}" if self.scheme == "etcd" else f"zookeeper://{host}/{room}"

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                # Debian's etcd reads its settings from the environment as well.
                env={name: value for name, value in os.environ.items() if not name.startswith("ETCD_")},
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.scheme} does not start:\n{(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Kills the server with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def forget(self) -> None:
        """Deletes the data on disk. The server must be stopped."""
        assert self._process is None
        shutil.rmtree(self.folder / "data")

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True


class EtcdServer(RegistryServer):
    scheme = "etcd"

    def __init__(self, *, quick: bool = True) -> None:
        super().__init__(quick=quick)
        self._peer_port = free_port()

    @classmethod
    def missing(cls) -> str | None:
        return None if shutil.which("etcd") else "etcd is not installed: run scripts/test-services as root"

    def _command(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._peer_port}"
        # etcd's shortest lease is one and a half election timeouts.
        ticks = ["--heartbeat-interval", "50", "--election-timeout", "500"] if self.quick else []
        return [
            "etcd", "--data-dir", str(self.folder / "data"), "--listen-client-urls", client, "--advertise-client-urls",
            client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster",
            f"default={peer}", *ticks,
        ]  # fmt: skip


class ZooKeeperServer(RegistryServer):
    scheme = "zookeeper"

    @classmethod
    def missing(cls) -> str | None:
        there = shutil.which("java") and _ZOOKEEPER_JAR.exists()
        return None if there else "ZooKeeper is not installed: run scripts/test-services as root"

    def _command(self) -> list[str]:
        settings = self.folder / "zoo.cfg"
        settings.write_text(
            f"tickTime={200 if self.quick else 2000}\ndataDir={self.folder / 'data'}\nclientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n"
        )
        # Options for a short-lived Java process: a quick start and little memory.
        options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return ["java", *options, "-cp", str(_ZOOKEEPER_JAR), main, str(settings)]


class PgBouncerServer(RegistryServer):
    """PgBouncer, usually in transaction mode, with few connections to a PostgreSQL for many clients."""

    scheme = "pgbouncer"

    def __init__(self, database_url: str, *, pool_size: int = 4, mode: str = "transaction", ignored: str = "") -> None:
        """`ignored`: start-up parameters that it takes without passing them on; it refuses all others."""
        super().__init__()
        self._mode = mode
        self._ignored = f"ignore_startup_parameters = {ignored}\n" if ignored else ""
        parts = urlsplit(database_url)
        options = parse_qs(parts.query)
        self._user = parts.username or "duly"
        self._database = parts.path.lstrip("/")
        self._host = options["host"][0] if "host" in options else parts.hostname or "127.0.0.1"
        self._port = options["port"][0] if "port" in options else str(parts.port or 5432)
        self._pool_size = pool_size

    @classmethod
    def missing(cls) -> str | None:
        there = shutil.which("pgbouncer", path=_PATH)
        return None if there else "PgBouncer is not installed: run scripts/test-services as root"

    @property
    def url(self) -> str:
        return f"postgresql://{self._user}@127.0.0.1:{self.port}/{self._database}"

    @property
    def console_url(self) -> str:
        """PgBouncer's own database: `show pools` and the like, in the simple protocol only."""
        return f"postgresql://{self._user}@127.0.0.1:{self.port}/pgbouncer"

    def _command(self) -> list[str]:
        settings = self.folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host={self._host} port={self._port} user={self._user}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\nauth_type = any\n"
            f"admin_users = {self._user}\npool_mode = {self._mode}\ndefault_pool_size = {self._pool_size}\n"
            f"{self._ignored}max_client_conn = 500\nserver_reset_query =\n"
        )
        program = str(shutil.which("pgbouncer", path=_PATH))
        if os.getuid() != 0:
            return [program, str(settings)]
        # PgBouncer refuses to run as root, and only the server's account may reach an embedded PostgreSQL's socket.
        self.folder.chmod(0o755)
        owner = os.stat(self._host) if self._host.startswith("/") else None
        account = [f"--reuid={owner.st_uid if owner else 65534}", f"--regid={owner.st_gid if owner else 65534}"]
        return ["setpriv", *account, "--clear-groups", program, str(settings)]


SERVERS: dict[str, type[RegistryServer]] = {"etcd": EtcdServer, "zookeeper": ZooKeeperServer}


class Servers:
    """The registries, each started when the first test asks for it."""

    def __init__(self) -> None:
        self._running: dict[str, RegistryServer] = {}

    def get(self, name: str) -> RegistryServer:
        if name not in self._running:
            if reason := SERVERS[name].missing():
                pytest.skip(reason)
            server = SERVERS[name]()
            self._running[name] = server
            server.start()
        return self._running[name]

    def remove(self) -> None:
        for server in self._running.values():
            server.remove()


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.remove()


class Wire:
    """Forwards to a port until it is cut: then every connection is reset and new ones are refused."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._whole = True
        self._listener = Listener(self._forward)

    @property
    def port(self) -> int:
        return self._listener.port

    async def __aenter__(self) -> Wire:
        await self._listener.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listener.close()

    async def cut(self) -> None:
        self._whole = False
        await self._listener.end_all()

    def mend(self) -> None:
        self._whole = True

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._whole:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        ways = [asyncio.create_task(_pump(reader, far_writer)), asyncio.create_task(_pump(far_reader, writer))]
        await until_one_ends(ways, writer, far_writer)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        return
