"""Incidents in the store: a kind is open once for a job or monitor, and closed once, whoever says so."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

from duly.model.incident import Incident
from duly.store import incidents
from duly.store.incidents import Closing, Opening
from duly.store.pool import Pool

JOB = UUID(int=7)


def opening(
    *, tenant: str = "default", kind: str = "late", job_id: UUID | None = JOB, monitor: str | None = None
) -> Opening:
    return Opening(tenant, "nightly", kind, "it is late", "cause", job_id=job_id, monitor=monitor)


async def opened(pool: Pool) -> list[Incident]:
    return await incidents.open_of_jobs(pool, None, limit=100)


async def test_a_kind_is_opened_once_for_a_job_also_by_several_leaders_at_once(pool: Pool) -> None:
    other = opening(kind="overrun"), opening(job_id=None, monitor="backup"), opening(tenant="acme")
    done = await asyncio.gather(*(incidents.open_many(pool, [opening(), *other]) for _ in range(5)))
    assert sum(done) == 4
    assert await incidents.open_many(pool, [opening(), opening()]) == 0
    assert {(one.tenant, one.kind) for one in await opened(pool)} == {
        ("default", "late"),
        ("default", "overrun"),
        ("acme", "late"),
    }
    assert [one.monitor for one in await incidents.open_of_monitors(pool, [("default", "backup"), ("b", "c")])] == [
        "backup"
    ]


async def test_one_that_is_open_is_closed_once_and_then_a_new_one_may_be_opened(pool: Pool) -> None:
    await incidents.open_many(pool, [opening()])
    [first] = await opened(pool)
    closing = Closing(first.incident_id, "it has started")
    assert sum(await asyncio.gather(*(incidents.close_many(pool, [closing]) for _ in range(5)))) == 1
    assert await opened(pool) == []
    assert await incidents.open_many(pool, [opening()]) == 1
    [second] = await opened(pool)
    assert second.incident_id != first.incident_id
    # An older leader that wakes up closes the incident it knew, which is closed, and not the new one.
    assert await incidents.close_many(pool, [closing]) == 0
    assert await opened(pool) == [second]


async def test_a_maintenance_window_keeps_incidents_of_its_job_or_tenant_from_being_opened(pool: Pool) -> None:
    insert = (
        "insert into duly.maintenance_windows (window_id, tenant, job_id, starts_at, ends_at, reason, created_at) "
        "values (gen_random_uuid(), $1, $2, duly.now() + $3::int * interval '1 hour', "
        "duly.now() + $4::int * interval '1 hour', 'moving', duly.now())"
    )
    await pool.query(insert, "acme", None, -1, 1)
    await pool.query(insert, "default", JOB, -1, 1)
    await pool.query(insert, "default", None, -2, -1)
    await pool.query(insert, "default", None, 1, 2)
    other = uuid4()
    assert await incidents.open_many(pool, [opening(), opening(tenant="acme"), opening(job_id=other)]) == 1
    assert [one.job_id for one in await opened(pool)] == [other]
    await pool.query("update duly.maintenance_windows set ends_at = duly.now() where starts_at < duly.now()")
    assert await incidents.open_many(pool, [opening(), opening(tenant="acme"), opening(job_id=other)]) == 2


async def test_closed_ones_are_kept_for_a_time_and_open_ones_until_they_are_closed(pool: Pool) -> None:
    await incidents.open_many(pool, [opening(), opening(kind="overrun")])
    first, second = await opened(pool)
    await incidents.close_many(pool, [Closing(first.incident_id, "over")])
    assert await incidents.prune(pool, kept_seconds=60, limit=10) == 0
    await pool.query(
        "update duly.incidents set opened_at = opened_at - interval '1 h', closed_at = closed_at - interval '1 h'"
    )
    assert await incidents.prune(pool, kept_seconds=60, limit=10) == 1
    assert [one.incident_id for one in await opened(pool)] == [second.incident_id]
