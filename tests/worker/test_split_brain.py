"""A worker whose connections lead to two primaries: the old primary lives on beside the promoted one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest

from conftest import Server
from duly.model import ClaimedRun, JobRequest, Requeued, Succeeded
from duly.operations import Operations
from duly.store import maintenance
from duly.store.pool import Pool
from duly.worker.completer import Completer
from harness.store import count, take


@pytest.fixture
async def old_primary(server: Server) -> AsyncIterator[Pool]:
    """A store with the same schema, which knows nothing of the jobs of the other store."""
    name = f"old_{uuid4().hex}"
    admin = await asyncpg.connect(server.url)
    await admin.execute(f"create database {name} template template_duly")
    pool = await Pool.connect(server.database_url(name))
    yield pool
    await pool.close()
    await admin.execute(f"drop database {name} with (force)")
    await admin.close()


def succeeded(run: ClaimedRun) -> Succeeded:
    return Succeeded(run, 1_800_000_000_000_000, 1_800_000_000_000_100)


@pytest.mark.parametrize("returned", [False, True])
async def test_what_was_said_to_the_old_primary_does_not_count_as_ended(
    pool: Pool, old_primary: Pool, operations: Operations, returned: bool
) -> None:
    """The claim stays, its lease expires, and rescue takes the run back. Closing the claim would lose the run."""
    for _ in range(2):
        await operations.submit(JobRequest("noop"), allow_unknown_handler=True)
    claim = await take(pool, lease=-1)
    assert claim.claim_id is not None
    first, second = claim.runs
    completer = Completer(old_primary, lambda _: None)
    completer.hold(claim.claim_id, 2)
    completer.add(Requeued(first, "queued", 0.0, None, None) if returned else succeeded(first))
    await completer.run_once()
    completer._pool = pool
    completer.add(succeeded(second))
    await completer.run_once()
    await completer.run_once()
    assert completer.lost == 1
    assert await count(pool, "history") == 1
    assert await count(pool, "claims") == 1, "the claim must still hold the first run"
    await maintenance.rescue(pool, limit=100)
    assert await count(pool, "claims") == 0
    assert await count(pool, "runs", "job_id = $1", first.job_id) == 1
