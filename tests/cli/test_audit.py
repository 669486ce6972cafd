"""`duly audit`, and what commands leave in it."""

from __future__ import annotations

from collections.abc import Callable

from duly.model import os_user
from harness.commands import Ended

Run = Callable[..., Ended]


def test_each_command_leaves_one_entry_with_its_user(duly: Run) -> None:
    made = duly("submit", "report", "--schedule", "every 1h", "--name", "nightly", "--allow-unknown-handler", "--json")
    job_id = made.document["job_id"]
    assert duly("job", "pause", "nightly", "--reason", "holidays").code == 0
    assert duly("job", "pause", "nightly").code == 0  # changes nothing
    assert duly("job", "resume", "nightly", "--reason", "back").code == 0
    run_id = duly("job", "trigger", "nightly", "--reason", "once more", "--json").document["run_id"]
    assert duly("run", "cancel", run_id, "--reason", "enough").code == 0
    assert duly("job", "cancel", "nightly", "--reason", "gone").code == 0
    assert duly("job", "resume", "nightly").code == 5
    lines = duly("audit", "--job", "nightly", "--json").lines[::-1]
    assert [(line["action"], line["kind"], line["reason"]) for line in lines] == [
        ("submit", "job", None), ("pause", "job", "holidays"), ("resume", "job", "back"),
        ("trigger", "job", "once more"), ("cancel", "run", "enough"), ("cancel", "job", "gone"),
    ]  # fmt: skip
    assert {(line["via"], line["actor"], line["job_id"]) for line in lines} == {("cli", os_user(), job_id)}
    shown = duly("audit", "--action", "pause").out
    assert all(part in shown for part in (f"{os_user()} (cli)", "pause job", job_id, "status=paused", "holidays"))
    assert len(duly("audit", "--limit", "2", "--json").lines) == 2
    assert "there are more than 2" in duly("audit", "--limit", "2").err
    assert "nothing has been changed" in duly("audit", "--actor", "nobody").err
    assert duly("audit", "--since", "yesterday-ish").code == 2
    assert duly("audit", "--job", "nothing").code == 4


def test_keys_and_tenants(duly: Run) -> None:
    key = duly("key", "create", "--tenant", "acme", "--role", "read", "--json").document["key_id"]
    duly("key", "revoke", key, "--reason", "leaked")
    duly("tenant", "set", "acme", "--max-jobs", "5", "--reason", "grows")
    lines = duly("--tenant", "acme", "audit", "--json").lines[::-1]
    assert [(line["kind"], line["action"], line["object"], line["reason"]) for line in lines] == [
        ("key", "create", key, None), ("key", "revoke", key, "leaked"), ("tenant", "set", "acme", "grows"),
    ]  # fmt: skip


def test_a_pause_says_until_when(duly: Run) -> None:
    duly("submit", "report", "--schedule", "every 1h", "--name", "nightly", "--allow-unknown-handler")
    assert "until 2999-12-01" in duly("job", "pause", "nightly", "--until", "2999-12-01 09:00").out
    assert "2999-12-01" in duly("job", "show", "nightly").out
    assert duly("job", "show", "nightly", "--json").document["paused_until"] == "2999-12-01T09:00:00Z"
    assert duly("job", "pause", "nightly", "--until", "+2h").code == 0
    for wrong in ("+never", "soon", "2001-01-01"):
        refused = duly("job", "pause", "nightly", "--until", wrong)
        assert (refused.code, "until" in refused.err) == (2, True)
    assert duly("job", "pause", "nightly", "--json").document["paused_until"] is None
