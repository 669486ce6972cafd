"""`duly key` and `duly tenant`."""

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


def test_a_tenants_bounds_are_set_shown_and_hold(duly: Run) -> None:
    changed = duly("tenant", "set", "default", "--tasks", "reports.*, mail", "--queues", "q", "--no-commands")
    assert "tasks reports.*, mail; queues q; no commands" in changed.out
    assert duly("tenant", "show", "default").out == changed.out
    listed = duly("tenant", "list").out
    assert "reports.*" in listed
    refused = duly("submit", "other", "--queue", "q", "--allow-unknown-handler")
    assert (refused.code, "handler: tenant 'default' may not submit task 'other'" in refused.err) == (7, True)
    refused = duly("submit", "--command", "--queue", "q", "--", "id")
    assert "may not submit commands" in refused.err
    assert duly("submit", "mail", "--queue", "q", "--allow-unknown-handler").code == 0
    lifted = duly("tenant", "set", "default", "--any-task", "--any-queue", "--commands", "--json").document
    assert (lifted["tasks"], lifted["queues"], lifted["commands"]) == (None, None, True)
    assert duly("submit", "other", "--allow-unknown-handler").code == 0
    for wrong in (("--tasks", "a", "--any-task"), ("--tasks", ""), ("--queues", "a*b"), ()):
        assert duly("tenant", "set", "default", *wrong).code != 0


def test_a_tenants_limits_are_set_listed_and_hold(duly: Run) -> None:
    assert "no tenant" in duly("tenant", "list").err
    assert duly("tenant", "set", "default", "--max-jobs", "1", "--requests-per-second", "2.5").code == 0
    shown = duly("tenant", "list").out
    assert "default" in shown
    assert "2.5" in shown
    assert duly("submit", "greet").code == 0
    refused = duly("submit", "greet")
    assert refused.code == 6
    assert "duly tenant set" in refused.err
    changed = duly("tenant", "set", "default", "--max-jobs", "default", "--json").document
    assert (changed["max_jobs"], changed["requests_per_second"]) == (None, 2.5)
    assert duly("submit", "greet").code == 0
    assert duly("tenant", "list", "--json").lines[0]["tenant"] == "default"


@pytest.mark.parametrize(
    "arguments", [("acme",), ("acme", "--max-jobs", "many"), ("acme", "--max-jobs", "-1"), ("", "--max-jobs", "1")]
)
def test_wrong_limits_are_refused(duly: Run, arguments: tuple[str, ...]) -> None:
    ended = duly("tenant", "set", *arguments)
    assert ended.code == 2
    assert ended.err.startswith("duly: ")


def test_a_role_is_bound_to_a_tenant_listed_and_let_go(duly: Run) -> None:
    assert "no role is bound" in duly("submitter", "list").err
    bound = duly("submitter", "add", "pg_monitor", "--tenant", "acme", "--commands")
    assert (bound.code, bound.out) == (0, "role pg_monitor submits for tenant acme, commands too\n")
    assert duly("submitter", "add", "pg_monitor", "--tenant", "acme").code == 0
    assert "pg_monitor" in duly("submitter", "list").out
    [line] = duly("submitter", "list", "--json").lines
    assert (line["role"], line["tenant"], line["commands"]) == ("pg_monitor", "acme", False)
    assert duly("submitter", "remove", "pg_monitor").code == 0
    gone = duly("submitter", "remove", "pg_monitor")
    assert (gone.code, "duly submitter list" in gone.err) == (4, True)
    for arguments, said in (
        (("nobody_of_this_name", "--tenant", "a"), "role: there is no role"),
        (("pg_monitor", "--tenant", ""), "tenant: must"),
        (("pg_write_all_data", "--tenant", "a"), "role: pg_write_all_data may write"),
    ):
        refused = duly("submitter", "add", *arguments)
        assert (refused.code, said in refused.err) == (2, True), refused.err
