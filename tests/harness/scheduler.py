"""A scheduler on a clock that the test moves, together with the clock of the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from duly.clock import DatabaseClock
from duly.cluster.coordinator import Term
from duly.model import to_micros
from duly.node import SchedulerNode
from duly.scheduler.catch_up import CatchingUp
from duly.scheduler.firer import Firer
from duly.scheduler.governor import Governor
from duly.scheduler.loader import Loader
from duly.scheduler.near_future import NearFuture
from duly.store.ids import new_job_ids, shard_of
from duly.store.jobs import NewJob, submit
from duly.store.pool import Pool
from harness.store import SHARDS, due_job, lead
from harness.waiting import eventually

START = datetime(2030, 5, 5, 12, 0, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


class FrozenClock(DatabaseClock):
    """A clock that stands still: it ignores measurements."""

    def __init__(self, now: datetime) -> None:
        super().__init__()
        self.moment = now

    def observe(self, database_now: datetime, sent: float, received: float) -> None:
        pass

    def now(self) -> datetime:
        return self.moment

    def now_us(self) -> int:
        return to_micros(self.moment)


class FrozenScheduler:
    """The services of one scheduler node. The test moves its clock and calls each step; no loop runs."""

    def __init__(
        self,
        pool: Pool,
        now: datetime = START,
        *,
        per_second: float = 0,
        window_seconds: int | None = None,
        ahead: timedelta = timedelta(0),
    ) -> None:
        self.pool = pool
        self.clock = FrozenClock(now)
        pool.clock = self.clock
        self.future = NearFuture(self.clock, horizon_us=600_000_000)
        self.governor = Governor(self.clock, per_second)
        self.catching_up = CatchingUp(pool, self.governor)
        self.firer = Firer(
            pool,
            self.future,
            misfire_grace=timedelta(seconds=10),
            ahead=ahead,
            catch_up_window_seconds=window_seconds,
            governor=self.governor,
        )
        self.loader = Loader(pool, self.future, interval=60, changed=lambda: None)
        self._led: set[int] = set()

    async def put(self, *jobs: NewJob, created_at: datetime | None = None) -> None:
        for start in range(0, len(jobs), 5000):
            batch = jobs[start : start + 5000]
            assert len(await submit(self.pool, batch, created_at=created_at or self.clock.moment)) == len(batch)

    async def lead(self, *jobs: NewJob) -> None:
        """Leads the shards of these jobs. The next `step` reads them."""
        for shard in sorted({job.shard for job in jobs} - self._led):
            await self._lead(shard)

    async def take_over(self, shard: int) -> None:
        """Leads the shard and reads its due jobs."""
        await self._lead(shard)
        await self.loader.run_once()

    async def _lead(self, shard: int) -> None:
        term = Term(shard, await lead(self.pool, shard))
        self._led.add(shard)
        self.firer.lead(term)
        self.catching_up.lead(term)
        self.loader.lead(shard)

    async def at(self, moment: datetime) -> None:
        await self.pool.query("update duly.clock set frozen_at = $1", moment)
        self.clock.moment = moment

    async def step(self, moment: datetime, *, read: bool = True) -> None:
        """Moves the clock to `moment` and runs each service once; without `read`, all but the loader."""
        await self.at(moment)
        if read:
            await self.loader.run_once()
        await self.firer.run_once()
        await self.catching_up.run_once()

    async def runs(self, job: NewJob | None = None, where: str = "true") -> list[datetime]:
        """The occurrences that became runs, in order."""
        rows = await self.pool.query(
            f"select scheduled_at from duly.runs where ($1::uuid is null or job_id = $1) and {where} "
            "order by scheduled_at",
            None if job is None else job.job_id,
        )
        return [row["scheduled_at"] for row in rows]

    async def late(self, job: NewJob | None = None) -> list[datetime]:
        return await self.runs(job, "flags & 2 = 2")

    async def missed(self, job: NewJob | None = None) -> Counter[str]:
        """The number of dropped occurrences, by reason."""
        rows = await self.pool.query(
            "select note ->> 'reason' as reason, sum((note ->> 'count')::int)::int as count from duly.history "
            "where status = 'missed' and ($1::uuid is null or job_id = $1) group by 1",
            None if job is None else job.job_id,
        )
        return Counter({row["reason"]: row["count"] for row in rows})

    async def job(self, job: NewJob) -> Any:
        return (await self.pool.query("select * from duly.job_status where job_id = $1", job.job_id))[0]


async def everything_read(node: SchedulerNode) -> None:
    """Returns when the node leads all shards and has read the jobs of each."""
    await eventually(lambda: len(node.loader._until) == SHARDS)


def same_shard(pool: Pool, count: int, due: datetime, **changes: Any) -> list[NewJob]:
    """Recurring jobs of one shard."""
    first = due_job(pool, due, **changes)
    ids = [UUID(int=(first.job_id.int & ~(0xFFFF_FFFF << 16)) | (n << 16)) for n in range(count)]
    return [first._replace(job_id=job_id) for job_id in ids]


def spread(pool: Pool, count: int, due: datetime, **changes: Any) -> list[NewJob]:
    """Recurring jobs in all shards."""
    first = due_job(pool, due, **changes)
    return [
        first._replace(job_id=job_id, shard=shard_of(job_id, SHARDS)) for job_id in new_job_ids(count, to_micros(due))
    ]


def moments(first: datetime, step: timedelta, count: int) -> Sequence[datetime]:
    return [first + n * step for n in range(count)]
