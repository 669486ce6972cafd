"""DULY_COORDINATOR: the values it may have, and the errors for all others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from duly.addresses import ServerAddress
from duly.cluster.making import make_coordinator
from duly.config import load_settings
from duly.errors import ConfigError, MissingExtra


@pytest.fixture(autouse=True)
def _no_settings_of_the_developers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "hosts", "path", "options"),
    [
        ("etcd://localhost", (("localhost", 2379),), "", {}),
        ("etcd://a:1,b:2,c?prefix=/x", (("a", 1), ("b", 2), ("c", 2379)), "", {"prefix": "/x"}),
        ("etcds://[::1]:7,[::2]?ca=/ca.pem", (("::1", 7), ("::2", 2379)), "", {"ca": "/ca.pem"}),
        ("zookeeper://a,b:5/my/duly", (("a", 2181), ("b", 5)), "/my/duly", {}),
        ("zookeeper://a/", (("a", 2181),), "", {}),
    ],
)
def test_addresses_of_servers(
    text: str, hosts: tuple[tuple[str, int], ...], path: str, options: dict[str, str]
) -> None:
    address = load_settings(coordinator=text).coordinator_address
    assert address is not None
    assert (address.hosts, address.path, address.options) == (hosts, path, options)


@pytest.mark.parametrize("text", ["postgres", "postgres-advisory"])
def test_coordinators_within_postgresql_have_no_address(text: str) -> None:
    assert load_settings(coordinator=text).coordinator_address is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raft", "postgres-advisory.*etcd://.*zookeeper://"),
        ("consul://u:hush@host", "'consul'.*etcd://"),
        ("etcd", "etcd://"),
        ("etcd:/host", "etcd://"),
        ("etcd://", "names no host"),
        ("etcd://a,,b", "names no host"),
        ("etcd://a:http", "port"),
        ("etcd://u:hush@a:0", "port"),
        ("etcd://u:hush@[::1", "IPv6"),
        ("etcd://a?prefx=/x", "'prefx'.*prefix"),
        ("zookeeper://a:99999", "port"),
        ("zookeeper://u:hush@a?x=1", "'x'.*none"),
    ],
)
def test_anything_else_is_refused_with_the_setting_s_name_and_without_its_password(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"DULY_COORDINATOR.*{said}") as refused:
        load_settings(coordinator=text)
    assert "hush" not in str(refused.value)


def test_advisory_locks_behind_a_pooler_need_a_direct_address() -> None:
    with pytest.raises(ConfigError, match="DULY_DIRECT_URL"):
        load_settings(coordinator="postgres-advisory", pgbouncer=True)
    load_settings(coordinator="postgres-advisory", pgbouncer=True, direct_url="postgresql://h/d")
    load_settings(coordinator="postgres", pgbouncer=True)


def test_a_password_is_never_shown() -> None:
    address = ServerAddress.parse("etcd://me:p%40ss@a:1,b:2/", port=9)
    assert (address.user, address.password) == ("me", "p@ss")
    assert address.shown == "etcd://me:***@a:1,b:2"
    assert "p@ss" not in repr(address)


@pytest.mark.parametrize(
    ("text", "library", "module"),
    [("etcd://a", "httpx", "duly.cluster.etcd_gateway"), ("zookeeper://a", "kazoo.client", "duly.cluster.zookeeper")],
)
def test_without_its_library_a_coordinator_names_the_extra(
    text: str, library: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    for name in (module, "duly.cluster.etcd"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    nothing: Any = None
    with pytest.raises(MissingExtra, match=rf"duly\[{text.partition(':')[0]}\]"):
        make_coordinator(nothing, nothing, load_settings(coordinator=text), node_id=UUID(int=1), name="n", version="0")
