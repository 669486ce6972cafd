"""`duly submitter`."""

from __future__ import annotations

from collections.abc import Callable

from harness.commands import Ended

Run = Callable[..., Ended]


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
