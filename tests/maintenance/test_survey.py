"""The survey: every active job is counted once in a walk, however often the statement is sent and by whom."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from duly.config import Settings
from duly.maintenance.survey import Survey
from duly.node import running_scheduler
from duly.store import demands
from duly.store.demands import Demand
from duly.store.jobs import NewJob
from duly.store.pool import Pool
from harness.store import due_job, put
from harness.waiting import eventually

Key = tuple[str, str, str, str]
# Too long for an index, however well it is compressed.
LONG = "(select string_agg(md5(n::text), '') from generate_series(1, 300) n)"
NOOP: Key = ("default", "default", "task", "noop")


def survey(pool: Pool, *, page: int) -> Survey:
    survey = Survey(pool, page=page)
    survey.lead(True)
    return survey


def job(pool: Pool, **fields: Any) -> NewJob:
    return due_job(pool, pool.clock.now() + timedelta(days=30), **fields)


async def surveyed(pool: Pool) -> dict[Key, tuple[int, bool]]:
    """The jobs of each demand as the survey alone knows them, and whether there may be more."""
    rows = await pool.fetch("demands/surveyed", demands.MAX_KEPT)
    found = [Demand(**row, runs=0) for row in rows]
    return {one.key: (one.jobs, one.at_least) for one in found}


async def surveyed_at(pool: Pool) -> Any:
    return (await pool.query("select surveyed_at from duly.survey"))[0][0]


async def test_a_walk_counts_every_active_job_once_page_by_page(pool: Pool) -> None:
    await put(pool, *(job(pool) for _ in range(7)), *(job(pool, queue="reports", handler="rare") for _ in range(2)))
    walking = survey(pool, page=4)
    await walking.run_once()
    assert sum(jobs for jobs, _ in (await surveyed(pool)).values()) == 4
    assert all(at_least for _, at_least in (await surveyed(pool)).values())
    assert await surveyed_at(pool) is None
    await walking.run_once()
    await walking.run_once()
    whole = {NOOP: (7, False), ("default", "reports", "task", "rare"): (2, False)}
    assert await surveyed(pool) == whole
    assert await surveyed_at(pool) is not None
    for _ in range(7):  # the counts of a walk that goes on do not hide those of the one before
        await walking.run_once()
        assert await surveyed(pool) == whole


async def test_what_no_active_job_demands_any_more_is_forgotten(pool: Pool) -> None:
    gone = job(pool, handler="gone")
    await put(pool, job(pool), gone)
    walking = survey(pool, page=100)
    await walking.run_once()
    assert set(await surveyed(pool)) == {NOOP, ("default", "default", "task", "gone")}
    await pool.query("update duly.jobs set status = 'paused', next_run_at = null where job_id = $1", gone.job_id)
    await walking.run_once()
    assert await surveyed(pool) == {NOOP: (1, False)}
    await walking.run_once()
    assert len(await pool.query("select from duly.demands")) == 1


async def test_two_nodes_at_once_count_no_job_twice(pool: Pool) -> None:
    await put(pool, *(job(pool) for _ in range(40)))
    nodes = [survey(pool, page=10) for _ in range(4)]

    async def all_wait() -> bool:
        waiting = "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        return len(await pool.query(waiting)) == 4

    # All of them begin before the first has ended.
    async with pool.transaction() as transaction:
        await transaction.connection.execute("select from duly.survey for update")
        counting = [asyncio.ensure_future(node.run_once()) for node in nodes]
        await eventually(all_wait)
    await asyncio.gather(*counting)  # four pages, whoever counts them
    assert await surveyed(pool) == {NOOP: (40, True)}
    await nodes[0].run_once()
    assert await surveyed(pool) == {NOOP: (40, False)}


async def test_a_node_that_takes_over_goes_on_where_the_other_ended(pool: Pool) -> None:
    await put(pool, *(job(pool) for _ in range(10)))
    for _ in range(4):  # each with a page, and gone
        await survey(pool, page=3).run_once()
    assert await surveyed(pool) == {NOOP: (10, False)}


async def test_targets_are_told_apart_by_kind_and_program(pool: Pool) -> None:
    command = '{"type": "command", "argv": ["/usr/bin/rsync", "-a"]}'
    await put(
        pool,
        job(pool, handler="command", target=command),
        job(pool, handler="command"),  # a task of that name
        job(pool, handler="http", target='{"type": "http", "url": "https://example.org/"}'),
    )
    await survey(pool, page=100).run_once()
    assert set(await surveyed(pool)) == {
        ("default", "default", "command", "/usr/bin/rsync"),
        ("default", "default", "task", "command"),
        ("default", "default", "http", ""),
    }


@pytest.mark.parametrize(
    "bad",
    [
        "target = '{\"argv\": 7}', handler = 'command'",
        "target = '[]', handler = 'command'",
        f"handler = {LONG}",
    ],
)
async def test_a_row_that_others_wrote_does_not_stop_it(pool: Pool, bad: str) -> None:
    spoiled = job(pool)
    await put(pool, spoiled, job(pool))
    await pool.query(f"update duly.jobs set {bad} where job_id = $1", spoiled.job_id)
    await survey(pool, page=100).run_once()
    assert (await surveyed(pool))[NOOP] == (1, False)
    assert await surveyed_at(pool) is not None


async def test_it_keeps_a_bounded_number_of_demands(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demands, "MAX_KEPT", 5)
    await put(pool, *(job(pool, handler=f"task {number}") for number in range(5)))
    walking = survey(pool, page=100)
    await walking.run_once()
    await put(pool, job(pool, handler="one more"), job(pool, handler="task 3"))
    await walking.run_once()
    found = await surveyed(pool)
    assert len(found) == 5
    assert found["default", "default", "task", "task 3"] == (2, False)
    assert (await demands.read(pool)).surveyed_at is None, "it does not claim to know all"


async def test_a_store_without_the_step_is_left_alone(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    await pool.query("drop table duly.demands, duly.survey")
    monkeypatch.setattr(Pool, "has_step", lambda _, number: number != demands.STEP)
    await put(pool, job(pool))
    await survey(pool, page=100).run_once()
    found = await demands.read(pool)
    assert [(one.key, one.jobs, one.at_least) for one in found.demands] == [(NOOP, 1, True)]
    assert found.surveyed_at is None


async def test_a_scheduler_does_it(pool: Pool, settings: Settings) -> None:
    await put(pool, job(pool))
    async with running_scheduler(pool, settings):

        async def done() -> bool:
            return await surveyed_at(pool) is not None

        await eventually(done)
    assert await surveyed(pool) == {NOOP: (1, False)}
