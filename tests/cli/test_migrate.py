"""`duly migrate`."""

from __future__ import annotations

from collections.abc import Callable

from duly.store.pool import Pool
from harness.commands import Ended, Process

Run = Callable[..., Ended]
Start = Callable[..., Process]


def test_migrate_says_what_it_would_do_and_then_what_it_did(duly: Run, empty_url: str) -> None:
    def migrate(*arguments: str) -> Ended:
        return duly("--database-url", empty_url, "migrate", *arguments)

    planned = migrate("--dry-run")
    assert planned.code == 0
    assert planned.out.startswith("would apply 0001_")
    assert migrate("--dry-run").out == planned.out, "a dry run changed something"
    done = migrate()
    assert done.code == 0
    assert done.out == planned.out.replace("would apply", "applied")
    assert migrate().out == "nothing to do: the store is up to date\n"
    assert migrate("--dry-run").out == "nothing to do: the store is up to date\n"
    assert duly("--database-url", empty_url, "submit", "greet").code == 0


async def test_a_store_that_is_newer_is_refused(pool: Pool, start: Start) -> None:
    await pool.query("insert into duly.migrations (version, name, checksum) values (0, '9.0.0', '')")
    for command in (["migrate"], ["migrate", "--dry-run"], ["job", "list"]):
        process = start(*command)
        assert process.end() == 3
        assert "newer than this Duly" in process.said


def test_a_dry_run_on_the_embedded_store_starts_nothing(duly: Run, environment: dict[str, str]) -> None:
    ended = duly("--home", "/nonexistent/duly-home", "migrate", "--dry-run")
    assert ended.code == 0
    assert "whenever it is opened" in ended.out
