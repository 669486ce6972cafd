"""`duly key`."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from harness.commands import Ended

Run = Callable[..., Ended]
KEY = re.compile(r"duly_[0-9a-z]{12}_[0-9A-Za-z]{49}")


def test_a_key_is_shown_once_and_alone_on_stdout(duly: Run) -> None:
    made = duly("key", "create", "--tenant", "acme", "--role", "write", "--name", "deploys", "--expires", "90d")
    assert made.code == 0
    assert KEY.fullmatch(made.out.strip())
    assert "not shown again" in made.err
    for form in ((), ("--json",)):
        listed = duly("key", "list", *form)
        assert made.out.split("_")[1] in listed.out
        assert made.out.strip().rpartition("_")[2] not in listed.out
    document = duly("key", "list", "--json").lines[0]
    assert (document["tenant"], document["role"], document["name"], document["status"]) == (
        "acme", "write", "deploys", "active",
    )  # fmt: skip
    assert document["expires_at"] > document["created_at"]
    assert document["last_used_at"] is document["revoked_at"] is None


def test_json_has_the_key_and_what_is_known_of_it(duly: Run) -> None:
    made = duly("key", "create", "--role", "read", "--json").document
    assert KEY.fullmatch(made["key"])
    assert made["key"].split("_")[1] == made["key_id"]
    assert (made["tenant"], made["expires_at"]) == ("default", None)


def test_a_key_is_revoked_by_its_id(duly: Run) -> None:
    assert "no keys" in duly("key", "list").err
    made = duly("key", "create", "--role", "admin", "--json").document
    assert "revoked" in duly("key", "revoke", made["key_id"]).out
    assert duly("key", "revoke", made["key_id"], "--json").document["revoked_at"]
    assert duly("key", "list", "--json").lines[0]["status"] == "revoked"
    assert "revoked" in duly("key", "list").out
    gone = duly("key", "revoke", "nothing")
    assert gone.code == 4
    assert "duly key list" in gone.err


def test_a_list_can_be_one_tenants(duly: Run) -> None:
    for tenant in ("a", "b"):
        duly("key", "create", "--role", "read", "--tenant", tenant)
    assert [line["tenant"] for line in duly("key", "list", "--tenant", "b", "--json").lines] == ["b"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--role", "root"), "role"),
        ((), "--role"),
        (("--role", "read", "--expires", "soon"), "expires"),
        (("--role", "read", "--expires", "0d"), "expires"),
        (("--role", "read", "--tenant", ""), "tenant"),
    ],
)
def test_wrong_options_are_named(duly: Run, arguments: tuple[str, ...], said: str) -> None:
    ended = duly("key", "create", *arguments)
    assert ended.code == 2
    assert said in ended.err
    assert ended.out == ""
