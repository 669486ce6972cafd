"""`duly dead`: listing, redriving and purging dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from duly.model import Buried
from duly.store import runs
from duly.store.pool import Pool
from harness.commands import Ended
from harness.store import take

Run = Callable[..., Ended]
ERROR = '{"type": "Boom", "message": "it \\u001b[31mbroke", "traceback": "Traceback: line 1"}'


@pytest.fixture
def dead(duly: Run, database_url: str) -> list[str]:
    """The ids of three dead runs, oldest first; the last one in a queue of its own."""
    for name, queue in (("a", "default"), ("b", "default"), ("c", "other")):
        duly("submit", "greet", "--name", name, "--queue", queue, "--payload", '{"who": "ops"}')

    async def bury() -> None:
        pool = await Pool.connect(database_url, size=1)
        for queue in ("default", "default", "other"):
            claim = await take(pool, queues=[queue], limit=1)
            await runs.bury(pool, [Buried(run, 1, 2, ERROR) for run in claim.runs])
        await pool.close()

    asyncio.run(bury())
    return [line["run_id"] for line in duly("dead", "list", "--json").lines][::-1]


def test_list_and_show(duly: Run, dead: list[str]) -> None:
    listed = duly("dead", "list").out
    assert all(run_id in listed for run_id in dead)
    assert "Boom: it" in listed
    assert "\x1b[31m" not in listed
    assert [line["name"] for line in duly("dead", "list", "--queue", "other", "--json").lines] == ["c"]
    assert "no dead letters" in duly("dead", "list", "--error-type", "Nothing").err
    assert "--limit" in duly("dead", "list", "--limit", "2").err
    shown = duly("dead", "show", dead[0])
    assert '{"who": "ops"}' in shown.out
    assert "Traceback: line 1" in shown.out
    assert duly("dead", "show", dead[0], "--json").document["attempts"][0]["error"]["type"] == "Boom"


def test_redrive_one_and_by_filter(duly: Run, dead: list[str]) -> None:
    assert duly("dead", "redrive", dead[0]).out == "1 redriven\n"
    assert duly("run", "show", dead[0], "--json").document["status"] == "queued"
    gone = duly("dead", "redrive", dead[0])
    assert gone.code == 4
    assert "no dead letter" in gone.err
    assert duly("dead", "redrive", "--queue", "other", "--json").document == {"redriven": 1, "refused": 0}
    assert duly("dead", "redrive", "--all", "--json").document["redriven"] == 1
    assert duly("dead", "list", "--json").lines == []


def test_nothing_is_swept_by_accident(duly: Run, dead: list[str]) -> None:
    for what in ("redrive", "purge"):
        assert duly("dead", what).code == 2
        assert duly("dead", what, dead[0], "--all").code == 2
    # Without an answer to its question the command does nothing.
    assert duly("dead", "purge", "--all").code != 0
    assert len(duly("dead", "list", "--json").lines) == 3


def test_purge(duly: Run, dead: list[str]) -> None:
    assert duly("dead", "purge", dead[0]).out == "1 purged\n"
    assert duly("dead", "purge", "--name", "b", "--yes").out == "1 purged\n"
    assert [line["run_id"] for line in duly("dead", "list", "--json").lines] == [dead[2]]
