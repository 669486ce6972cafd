"""The surroundings of a command: a clean environment, none of Duly's secrets, and an account of its own."""

from __future__ import annotations

import os
import pwd
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duly.config import Settings
from duly.errors import ConfigError
from duly.model import Run
from duly.store import embedded
from duly.worker.account import Account, clean_environment, passed_names
from duly.worker.targets.making import check_commands
from harness.commands import Process
from harness.pids import children_of, gone, numbers_in
from harness.proxy import Proxy
from harness.worker import Workbench

SECRET = "hunter2hunter2"
# An account that owns nothing; a number, because the machine needs no name for it.
STRANGER = 64_123

# Starts a program as that account. The program may reach all files, because this Python may lie in a home that is
# closed to the account. That does not open /proc.
AS_STRANGER = (
    "setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", "--inh-caps=+dac_override",
    "--ambient-caps=+dac_override",
)  # fmt: skip

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")


@pytest.fixture
def bench(bench: Workbench) -> Workbench:
    bench.settings = bench.settings.model_copy(update={"allow_commands": True})
    return bench


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every account may enter. Not below pytest's, which any other pytest of root closes."""
    with tempfile.TemporaryDirectory(prefix="duly-tests-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


async def ran(bench: Workbench, script: str, **options: Any) -> Run:
    """The run of a shell script, once it has ended."""
    job_id = await bench.command("sh", "-c", script, max_retries=0, **options)
    async with bench.working():
        return await bench.end_of(job_id)


def words(run: Run) -> list[str]:
    assert run.status == "succeeded", run
    return str(run.result["stdout"]).split()


# The environment of a command


async def test_a_command_gets_the_variables_on_the_list_and_its_jobs_own(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "DULY_WEBHOOK_SECRET", "OF_THE_APP", "PYTHONPATH"):
        monkeypatch.setenv(name, SECRET)
    for name in ("LANG", "LC_TIME", "TZ", "TMPDIR"):
        monkeypatch.setenv(name, "/tmp" if name == "TMPDIR" else "C")
    run = await ran(bench, "env", env={"OF_THE_JOB": "a", "LANG": "b"}, secret_env={"TOKEN": "c"})
    found = dict(line.split("=", 1) for line in str(run.result["stdout"]).splitlines())
    assert SECRET not in run.result["stdout"]
    assert (found["OF_THE_JOB"], found["LANG"], found["LC_TIME"]) == ("a", "b", "C")
    shells_own = {"PWD", "SHLVL", "_", "OLDPWD"}
    of_worker = {"PATH", "HOME", "LANG", "LC_TIME", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR"}
    others = {name for name in found if not name.startswith(("DULY_", "LC_"))} - shells_own - of_worker
    assert others == {"OF_THE_JOB", "TOKEN", "TRACEPARENT"}


async def test_what_the_worker_is_told_to_pass_is_passed(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "for-commands-too")
    monkeypatch.setenv("OF_THE_APP", SECRET)
    bench.settings = bench.settings.model_copy(update={"pass_env": "PGPASSWORD, NOT_SET"})
    run = await ran(bench, 'echo "$PGPASSWORD" "${OF_THE_APP-nothing}" "${NOT_SET-nothing}"')
    assert words(run) == ["for-commands-too", "nothing", "nothing"]


@pytest.mark.parametrize("name", ["DULY_DATABASE_URL", "A=B", "1A", "PG*"])
def test_what_cannot_be_passed_is_refused_when_the_worker_starts(name: str) -> None:
    with pytest.raises(ConfigError, match=r"pass_env \(--pass-env\)"):
        passed_names(f"PATH,{name}")


def test_another_accounts_command_gets_that_accounts_home() -> None:
    account = Account(1, 2, "batch", "/home/batch", "/bin/zsh")
    worker = {"HOME": "/root", "USER": "root", "SHELL": "/bin/sh", "TMPDIR": "/root/tmp", "PATH": "/bin", "X": "y"}
    assert clean_environment(worker, account=account) == {
        "HOME": "/home/batch", "USER": "batch", "LOGNAME": "batch", "SHELL": "/bin/zsh", "PATH": "/bin",
    }  # fmt: skip
    assert clean_environment(worker, account=account, passed=frozenset({"TMPDIR"}))["TMPDIR"] == "/root/tmp"


def test_a_worker_whose_environment_lacks_them_gives_commands_its_accounts_variables_as_cron_does() -> None:
    known = pwd.getpwuid(os.geteuid())
    own = {"HOME": known.pw_dir, "USER": known.pw_name, "LOGNAME": known.pw_name, "SHELL": known.pw_shell}
    assert clean_environment({"PATH": "/bin"}) == {**own, "PATH": "/bin"}
    assert clean_environment({"HOME": "/srv", "LOGNAME": "x"}) == {**own, "HOME": "/srv", "LOGNAME": "x"}


# Access to the parent processes


@on_linux
async def test_the_process_that_starts_commands_has_none_of_the_workers_environment(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DULY_DATABASE_URL", f"postgresql://somebody:{SECRET}@host/name")
    monkeypatch.setenv("PGPASSWORD", SECRET)
    run = await ran(bench, r"tr '\0' '\n' </proc/$PPID/environ | cut -d= -f1 || true")
    assert set(words(run)) <= {"PATH", "LD_LIBRARY_PATH"}


PEEK = """
for pid in $PPID $(cut -d' ' -f4 /proc/$PPID/stat); do
    for what in environ maps fd/0; do
        if head -c1 /proc/$pid/$what >/dev/null 2>&1; then echo "$what of $pid can be read"; fi
    done
done
id -u
"""


@on_linux
@as_root
async def test_a_command_of_the_workers_own_account_cannot_look_into_worker_or_guard(
    bench: Workbench, database_url: str
) -> None:
    job_id = await bench.command("sh", "-c", PEEK, max_retries=0)
    with Proxy(database_url) as proxy:  # the socket of the tests' PostgreSQL is closed to other accounts
        environment = {"DULY_DATABASE_URL": proxy.url, "DULY_POLL_SECONDS": "0.2", "HOME": "/", "PGPASSWORD": SECRET}
        arguments = ("worker", "--app", "duly.cli.demo:app", "--allow-commands")
        worker = Process(arguments, environment, Path("/"), by=AS_STRANGER)
        try:
            run = await bench.end_of(job_id)
        finally:
            worker.close()
    assert str(run.result["stdout"]).splitlines() == [str(STRANGER)]


# Commands under another account


@as_root
async def test_a_command_runs_as_the_account_it_is_given(bench: Workbench, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    bench.settings = bench.settings.model_copy(update={"command_user": f"{STRANGER}:{STRANGER + 1}"})
    script = (
        "id -u; id -g; id -G; pwd; echo to-the-screen >/dev/stderr; cat; test -r secret && echo it can be read; true"
    )
    run = await ran(bench, script, payload="in")
    assert words(run) == [str(STRANGER), str(STRANGER + 1), str(STRANGER + 1), "/", '"in"']
    assert run.result["stderr"] == "to-the-screen\n"


@as_root
@on_linux
async def test_another_account_reads_nothing_of_the_workers(bench: Workbench, database_url: str) -> None:
    bench.settings = bench.settings.model_copy(update={"command_user": f"{STRANGER}:{STRANGER}"})
    socket = Path(database_url.partition("host=")[2].partition("&")[0].replace("%2F", "/")) / ".s.PGSQL.5432"
    assert socket.exists()
    script = (
        PEEK + f"test -w {socket} && echo socket; test -r {socket.parent.parent}/data/PG_VERSION && echo data; true"
    )
    assert words(await ran(bench, script)) == [str(STRANGER)]


@as_root
async def test_a_folder_that_is_closed_to_the_account_is_refused(bench: Workbench, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    bench.settings = bench.settings.model_copy(update={"command_user": f"{STRANGER}:{STRANGER}"})
    run = await ran(bench, "pwd", cwd=str(tmp_path))
    assert (run.status, "cannot be entered" in str(run.error)) == ("dead", True)


@as_root
@on_linux
async def test_a_command_of_another_account_ends_with_the_guard(bench: Workbench, open_folder: Path) -> None:
    file = open_folder / "pids"
    file.touch()
    file.chmod(0o666)
    bench.settings = bench.settings.model_copy(update={"command_user": f"{STRANGER}:{STRANGER}"})
    job_id = await bench.command("sh", "-c", f"echo $$ >>{file}; exec sleep 300", max_retries=0)
    async with bench.working():
        (pid,) = await numbers_in(file, 1)
        (guard,) = [one for one in children_of(os.getpid()) if pid in children_of(one)]
        os.kill(guard, signal.SIGKILL)
        await bench.end_of(job_id)
        await gone(pid)


@as_root
async def test_a_command_of_another_account_ends_when_its_time_is_over(bench: Workbench) -> None:
    bench.settings = bench.settings.model_copy(update={"command_user": f"{STRANGER}:{STRANGER}"})
    run = await ran(bench, "sleep 300 & echo $! $$; wait", timeout_seconds=0.5)
    assert run.status == "dead"


@as_root
@pytest.mark.parametrize(
    ("text", "told"),
    [("no-such-account", "no account"), ("", "no account"), ("nobody:no-such-group", "no group"), ("4294967295", "")],
)
def test_an_account_that_is_none_is_refused(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"command_user \(--command-user\).*{told}"):
        Account.parse(text)


@as_root
def test_who_is_not_root_cannot_have_commands_run_as_others() -> None:
    worker = Process(
        ("worker", "--app", "duly.cli.demo:app", "--allow-commands", "--command-user", "nobody"),
        {"HOME": "/"},
        Path("/"),
        by=AS_STRANGER,
    )
    assert worker.end() != 0
    assert "only root can change its account" in worker.said
    worker.close()


@as_root
def test_commands_are_not_run_as_the_account_of_the_embedded_store(settings: Settings, tmp_path: Path) -> None:
    data = tmp_path / "postgres" / "data"
    data.mkdir(parents=True)
    os.chown(data, STRANGER, STRANGER)
    assert embedded.owner(tmp_path) == STRANGER
    own = settings.model_copy(update={"database_url": None, "home": tmp_path})
    with pytest.raises(ConfigError, match="choose another account"):
        check_commands(own.model_copy(update={"command_user": f"{STRANGER}:{STRANGER}"}))
    check_commands(own.model_copy(update={"command_user": f"{STRANGER + 1}:{STRANGER}"}))
