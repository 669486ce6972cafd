"""Jobs, claims and fires put straight into a store, and the embedded server of the tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from duly.model import Claim, ClaimedRun, Succeeded
from duly.store import embedded, fires, maintenance, runs
from duly.store.ids import new_job_ids, shard_of
from duly.store.jobs import NewJob, submit
from duly.store.pool import Pool, Querier
from harness.waiting import eventually

SHARDS = 64
ALL_PRIORITIES = list(range(9, -1, -1))
# Enough for two servers with the largest of the stores that tests fill, and their WAL.
_ROOM_BYTES = 8 * 1024**3


def new_job(pool: Pool, **changes: Any) -> NewJob:
    """A one-off job that runs now, unless `changes` say otherwise."""
    job_id = new_job_ids(1, pool.clock.now_us())[0]
    fields: dict[str, Any] = {
        "job_id": job_id, "shard": shard_of(job_id, SHARDS), "tenant": "default", "name": "test", "handler": "noop",
        "target": None, "payload": "{}", "payload_ref": None, "kind": "once", "schedule": "now", "timezone": "UTC",
        "start_at": None, "end_at": None, "max_runs": None, "queue": "default", "priority": 5, "policy": None,
        "labels": None, "dedupe_key": None, "fingerprint": None, "next_run_at": None, "immediate": True,
    }  # fmt: skip
    return NewJob(**(fields | changes))


def due_job(pool: Pool, due: datetime, **changes: Any) -> NewJob:
    """A recurring job whose next occurrence is at `due`."""
    fields = {"kind": "interval", "schedule": "every 1h", "next_run_at": due, "immediate": False}
    return new_job(pool, **(fields | changes))


async def put(pool: Pool, *jobs: NewJob) -> None:
    created = await submit(pool, jobs, created_at=pool.clock.now())
    assert len(created) == len(jobs)


async def put_now(pool: Pool, count: int, **changes: Any) -> list[NewJob]:
    """`count` runs in the queue, each of a job of its own."""
    jobs = [
        new_job(pool, job_id=job_id, shard=shard_of(job_id, SHARDS), **changes)
        for job_id in new_job_ids(count, pool.clock.now_us())
    ]
    for start in range(0, count, 5000):
        await put(pool, *jobs[start : start + 5000])
    return jobs


async def take(
    pool: Querier,
    *,
    worker_id: UUID | None = None,
    limit: int = 1000,
    queues: Sequence[str] = ("default",),
    lease: float = 60,
) -> Claim:
    lanes = (
        [queue for _ in ALL_PRIORITIES for queue in queues],
        [priority for priority in ALL_PRIORITIES for _ in queues],
    )
    return await runs.claim(pool, worker_id=worker_id or uuid4(), lease_seconds=lease, limit=limit, lanes=lanes)


def succeeded(run: ClaimedRun, *, result: str | None = None) -> Succeeded:
    return Succeeded(run, 1_700_000_000_000_000, 1_700_000_000_000_001, result)


async def lead(pool: Pool, shard: int) -> int:
    """Makes a node and lets it lead the shard. Returns the epoch."""
    from duly.store import cluster

    node_id = uuid4()
    await cluster.join(pool, node_id=node_id, kind="scheduler", name="test", version="0", lease_seconds=600, info={})
    epoch = (await pool.query("select epoch from duly.shards where shard = $1", shard))[0]["epoch"]
    await pool.query("update duly.shards set node_id = null where shard = $1", shard)
    won = await cluster.acquire(pool, node_id=node_id, shards=[shard], epochs=[epoch])
    return won[shard]


async def fire_now(pool: Querier, *, shard: int, epoch: int, batch: fires.Fires) -> fires.Fired:
    """Fires the batch: by its own versions if it has any, else by the jobs' present versions."""
    if not batch.versions:
        seen = {job.job_id: job.version for job in await fires.due(pool, job_ids=batch.job_ids)}
        batch.versions = [seen.get(job_id, 0) for job_id in batch.job_ids]
    return await fires.fire(pool, epochs={shard: epoch}, batch=batch)


async def fire_as_seen(
    pool: Pool, job: NewJob, due: datetime, next_run_at: datetime, *, epoch: int, overlap: str, max_queued: int
) -> fires.Fired:
    """Fires one job as the scheduler does: by the row it has read."""
    seen = await fires.due(pool, job_ids=[job.job_id])
    batch: fires.Fires | fires.SimpleFires
    if seen and seen[0].ctid and seen[0].next_run_at == due and (not seen[0].busy or overlap == "parallel"):
        batch = fires.SimpleFires(
            ctids=[seen[0].ctid],
            versions=[seen[0].version],
            job_ids=[job.job_id],
            expected=[due],
            next_run_at=[next_run_at],
            run_flags=[8 if overlap == "queue" else 0],
            shards=[job.shard],
        )
    else:
        batch = fire_of(job._replace(next_run_at=due), next_run_at=next_run_at, overlap=overlap, max_queued=max_queued)
        batch.versions = [seen[0].version if seen else 0]
    return await fires.fire(pool, epochs={job.shard: epoch}, batch=batch)


def fire_of(
    job: NewJob,
    *,
    next_run_at: datetime | None,
    scheduled: Sequence[datetime] | None = None,
    overlap: str = "skip",
    max_queued: int = 100,
) -> fires.Fires:
    """A fire of one job that makes one run per moment in `scheduled` (its expected occurrence by default)."""
    assert job.next_run_at is not None
    moments = [job.next_run_at] if scheduled is None else list(scheduled)
    return fires.Fires(
        job_ids=[job.job_id],
        expected=[job.next_run_at],
        next_run_at=[next_run_at],
        overlap=[overlap],
        max_queued=[max_queued],
        run_job_ids=[job.job_id] * len(moments),
        run_scheduled_at=moments,
        run_flags=[8 if overlap == "queue" or len(moments) > 1 else 0] * len(moments),
        run_number=list(range(1, len(moments) + 1)),
    )


def folder_in_memory() -> str | None:
    """The folder of a file system in memory with room for a server, or None.

    Some 1,900 tests clone a database each, and a clone writes 18 MB: 55 ms in memory, and 80 to 900 ms on a disk that
    other processes wrote to as well (medians of 25).
    """
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free >= _ROOM_BYTES else None


@contextmanager
def hasty_postgres() -> Iterator[str]:
    """The URL of an embedded server for many databases of tests."""
    # Durability is tested by the embedded tests and the torture; elsewhere it only costs time.
    settings = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "300"}
    # Not below pytest's own folder: every pytest that root starts closes that folder to other accounts, and then the
    # server, which cannot run as root, would lose its files.
    with tempfile.TemporaryDirectory(prefix="duly-tests-", dir=folder_in_memory()) as home:
        running = embedded.start(Path(home), settings=settings)
        try:
            yield running.url
        finally:
            running.release()


def running_url(home: Path) -> str | None:
    """The URL of the embedded server of `home` if it answers now, else None."""
    paths = embedded._Paths(home)
    return paths.url if embedded._ask(paths) == "ready" else None


async def rescue_from_the_living(pool: Pool) -> None:
    """Rescues a claim's one run although its worker lives. Retries if a heartbeat came in between."""

    async def rescued() -> bool:
        await pool.query("update duly.claims set lease_until = duly.now() - interval '1 second'")
        return (await maintenance.rescue(pool)).requeued == 1

    await eventually(rescued)


async def count(pool: Pool, table: str, where: str = "true", *args: Any) -> int:
    rows = await pool.query(f"select count(*) as count from duly.{table} where {where}", *args)
    return int(rows[0]["count"])


def hours_ago(hours: float) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) - timedelta(hours=hours)
