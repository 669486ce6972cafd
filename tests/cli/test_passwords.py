"""No command shows the password of an address: whichever setting holds it, however it is spelt, whatever goes wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from harness.commands import Ended, Process
from harness.passwords import MARK, PASSWORDS, addresses_with, assert_hidden
from harness.pids import children_of

Run = Callable[..., Ended]

# Commands that open a store at once, or show which store it is.
COMMANDS = [
    ["status"], ["doctor"], ["doctor", "--json"], ["migrate"], ["job", "list"], ["submit", "greet"], ["key", "list"],
    ["scheduler"], ["worker", "--app", "tasks_of_test:app"], ["api", "--port", "0"], ["up", "--port", "0"],
    ["webhook-secret"],
]  # fmt: skip


@pytest.fixture(autouse=True)
def _made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))


def fails(duly: Run, *arguments: str) -> None:
    """Checks that the command fails and hides the password, even with all log lines."""
    ended = duly("--log-level", "DEBUG", *arguments)
    assert ended.code != 0, (arguments, ended)
    assert_hidden(ended.out + ended.err)


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_store_that_cannot_be_opened_is_named_without_it(
    password: str, duly: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address in addresses_with(password):
        monkeypatch.setenv("DULY_DATABASE_URL", address)
        fails(duly, "doctor")
    fails(duly, "--database-url", address, "status")


def test_no_command_shows_it(duly: Run, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in (
        f"postgresql://u:{MARK}@127.0.0.1:1/d",
        f"postgresql://u@127.0.0.1:1/d?password={MARK}",
        f"postgresql://u:12/{MARK}@127.0.0.1:1/d",
    ):
        monkeypatch.setenv("DULY_DATABASE_URL", address)
        for command in COMMANDS:
            fails(duly, *command)


def test_a_login_that_is_refused_and_a_database_that_is_not_there(
    duly: Run, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = environment["DULY_DATABASE_URL"]
    for address in (
        there.replace("//duly@", f"//nobody_here:{MARK}@") + f"&sslpassword={MARK}",
        there.replace("/test_", "/no_test_") + f"&password={MARK}",
    ):
        for command in (["status"], ["doctor"], ["migrate"]):
            monkeypatch.setenv("DULY_DATABASE_URL", address)
            fails(duly, *command)


@pytest.mark.parametrize("setting", ["DULY_COORDINATOR", "DULY_DISPATCH", "DULY_URL"])
def test_no_other_setting_shows_it(setting: str, duly: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for password in PASSWORDS:
        for scheme in ("nats", "etcd", "https"):
            address = f"{scheme}://u:{password}@127.0.0.1:port"
            monkeypatch.setenv(setting, address)
            fails(duly, "job", "list")
            fails(duly, "job", "list", address)
            fails(duly, "--url", address, "job", "list")


def test_a_store_that_is_open_is_shown_without_it_and_children_are_not_given_it_as_an_argument(
    start: Callable[..., Process], environment: dict[str, str]
) -> None:
    address = environment["DULY_DATABASE_URL"] + f"&password={MARK}&sslpassword={MARK}"
    process = start("up", "--app", "tasks_of_test:app", "--port", "0", DULY_DATABASE_URL=address)
    process.wait_for("store: postgresql://duly@/test_")
    process.wait_for("is running")
    family = [process.pid, *children_of(process.pid)]
    family += [below for child in family[1:] for below in children_of(child)]
    assert len(family) >= 3
    for pid in family:
        assert_hidden(Path(f"/proc/{pid}/cmdline").read_text())
    process.press_ctrl_c()
    process.end()
    assert_hidden(process.said)
