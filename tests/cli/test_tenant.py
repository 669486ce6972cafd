"""`duly tenant`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.commands import Ended

Run = Callable[..., Ended]


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
