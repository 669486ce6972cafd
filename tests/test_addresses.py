"""An address is shown without its password, in every spelling and with every error in it.

tests/cli/test_passwords.py gives the same addresses to commands.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from duly import AsyncClient, Client, ConfigError
from duly.addresses import shown_postgres, without_passwords
from duly.cli.invocation import Invocation
from duly.config import Settings, load_settings
from duly.errors import DulyError
from duly.store.pool import Pool, connection_options
from harness.passwords import MARK, PASSWORDS, addresses_with, assert_hidden

ALL = [address for password in PASSWORDS for address in addresses_with(password)]


def told(error: BaseException) -> str:
    """All text that a log with a traceback shows of the error."""
    return str(error) + repr(error) + "".join(traceback.format_exception(error))


def raised(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    try:
        return repr(call(*args, **kwargs))
    except (DulyError, ValueError) as error:
        return told(error)


def test_what_is_shown_of_an_address_holds_no_password() -> None:
    for address in ALL:
        assert_hidden(shown_postgres(address), address)
        assert_hidden(raised(connection_options, address), address)
        if "://u:" in address and "@" in address:
            assert_hidden(without_passwords(f"got unexpected extra argument ({address})"), address)


async def test_what_is_said_of_an_address_that_leads_nowhere_holds_no_password() -> None:
    for address in ALL:
        with pytest.raises(DulyError) as failed:
            await Pool.connect(address, connect_timeout=5)
        assert_hidden(told(failed.value), address)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://u:p@h:5/d?sslmode=require", "postgresql://u:***@h:5/d"),
        ("postgres://u@a,b:6,[::1]:7/d", "postgres://u@a,b:6,[::1]:7/d"),
        ("postgresql:///d?host=/run/x&port=5&password=p", "postgresql:///d?host=/run/x&port=5"),
        ("postgresql://h/d?user=me@server&password=p@w", "postgresql://h/d?user=me@server"),
        ("postgresql://", "postgresql://"),
        ("POSTGRESQL://h", "postgresql://h"),
        ("postgresql://u:p/w@h/d", "postgresql://***"),
    ],
)
def test_user_hosts_ports_and_database_are_shown(address: str, shown: str) -> None:
    assert shown_postgres(address) == shown
    if "***" not in shown.rpartition("//")[2]:
        connection_options(address)


def test_an_unusable_address_is_refused_with_what_to_do() -> None:
    for address, word in (
        ("postgresql://u:p/w@h/d", "%2F"),
        ("postgresql://u:p#w@h/d", "%23"),
        ("postgresql://u:p@w@h/d", "%40"),
        ("postgresql://h:port/d", "port"),
        ("mysql://h", "postgresql://"),
        ("host=h", "postgresql://"),
    ):
        with pytest.raises(ConfigError, match=word):
            connection_options(address)


def test_settings_show_no_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    kept = {"database_url": f"postgresql://u:{MARK}@h/d", "direct_url": f"postgresql://u:{MARK}@h/d"}
    kept |= {"coordinator": f"etcd://u:{MARK}@h", "webhook_secret": MARK, "deadman_url": f"https://h/{MARK}"}
    settings = load_settings(**kept)
    assert_hidden(repr(settings) + str(settings))
    assert_hidden(repr(Invocation(kept["database_url"], url=f"https://u:{MARK}@h")))
    # Pydantic's message about a setting quotes its input: all settings, if two of them contradict each other.
    unusable = [
        {"deadman_url": f"{start}{MARK}"} for start in ("", "ftp://h/", "https://u:", "https://u@h/", "http:///")
    ]
    others: list[dict[str, Any]] = [{"heartbeat_seconds": 14}, {"shards": "x"}, {"database_url": 5}]
    for wrong in (*others, *unusable):
        with pytest.raises(ValidationError) as refused:
            Settings(**(kept | wrong))
        assert_hidden(told(refused.value))
        assert_hidden(raised(load_settings, **(kept | wrong)))


@pytest.mark.parametrize(
    ("setting", "scheme"), [("coordinator", "etcd"), ("coordinator", "nats"), ("dispatch", "nats")]
)
def test_other_servers_addresses_are_not_repeated(
    setting: str, scheme: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for password in PASSWORDS:
        for address in (
            f"{scheme}://u:{password}@h",
            f"{scheme}://u:{password}@h:port,g/x?prefix=/y",
            f"{scheme}://h?{password}",
            f"{scheme}://h?password={password}",
            f"{scheme}:/u:{password}@h",
            f"u:{password}@h",
            password,
        ):
            try:
                found = load_settings(**{setting: address}).coordinator_address
            except ConfigError as error:
                assert_hidden(told(error), address)
            else:
                assert found is not None
                assert_hidden(found.shown, address)
                assert_hidden(repr(found), address)


def test_the_address_of_an_api_is_not_repeated() -> None:
    for password in PASSWORDS:
        for address in (
            f"https://u:{password}@h",
            f"https://u:{password}@h:port/x",
            f"https://{password}@h",
            f"https://h/?key={password}",
            f"https://h:port{password}",
            f"https://[{password}",
            f"u:{password}@h",
            f"https://u:{password}@h]",
        ):
            for kind in (Client, AsyncClient):
                try:
                    kind(address)
                except ConfigError as error:
                    assert_hidden(told(error), address)
                else:
                    raise AssertionError(f"{address} was accepted")
