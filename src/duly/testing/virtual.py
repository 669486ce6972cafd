"""One test's own Duly: the real scheduler and worker on a real store, on a clock that only the test moves.

Nothing runs by itself. `advance` goes from event to event, and at each lets the product's own parts do one pass: the
firer fires the due jobs, the claimer claims, handlers run, outcomes are recorded. So a year takes as long as its
runs, and everything happens in the order of time.
"""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from duly.app import Duly
from duly.checks import check_moment
from duly.cluster.coordinator import Term
from duly.config import Settings
from duly.errors import DulyError, InvalidInput
from duly.model import Run
from duly.node import duly_version
from duly.operations import StoreOperations
from duly.scheduler.firer import Firer
from duly.scheduler.loader import Loader
from duly.scheduler.near_future import NearFuture
from duly.store import cluster
from duly.store.pool import Pool
from duly.testing.binding import Binding
from duly.testing.clock import VirtualClock
from duly.testing.server import StoreServer, running_server
from duly.testing.single_connection import SingleConnection
from duly.testing.statements import testing_statement
from duly.testing.stepped_worker import SteppedWorker
from duly.worker.handler.task import Task

_NAME = "duly.testing"
# The wheel's horizon. A step may cross months without a re-read.
_HORIZON = timedelta(days=365 * 200)
# Longer than any test's time: the terms of a test's only node never end.
_LEASE_SECONDS = _HORIZON.total_seconds()
# Passes at one moment: a million queued runs need 10,000; a run that keeps coming back would never end.
_MAX_PASSES = 20_000
# Steps between two vacuums. Without them the 8,000th step takes a third longer than the first.
_VACUUM_EVERY = 500
_PAGE = 1000


class DulyTest:
    """A store, an app on it, and a clock. See docs/testing.md."""

    def __init__(
        self, pool: SingleConnection, clock: VirtualClock, settings: Settings, binding: Binding, epoch: int
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._binding = binding
        self._tasks: ChainMap[str, Task] = ChainMap()
        self._future = NearFuture(clock, horizon_us=int(_HORIZON.total_seconds() * 1e6))
        grace = timedelta(seconds=settings.misfire_grace_seconds)
        self._firer = Firer(pool, self._future, misfire_grace=grace)
        self._loader = Loader(pool, self._future, interval=settings.reread_seconds, changed=lambda: None)
        self._firer.lead(Term(0, epoch))
        self._loader.lead(0)
        self._worker = SteppedWorker(pool, self._tasks, settings)
        self._operations = StoreOperations(pool, settings, shard_count=1)
        self._loop = asyncio.get_running_loop()
        self._steps = 0
        # Ended runs are read from this time on; those of this very moment that were returned already are in the set.
        self._looked_at = clock.now()
        self._handed_out: set[tuple[UUID, datetime]] = set()
        self.use(Duly(settings=settings))

    @classmethod
    @asynccontextmanager
    async def open(
        cls, server: StoreServer | None = None, *, app: Duly | None = None, start: datetime | None = None
    ) -> AsyncIterator[DulyTest]:
        """Open a new store on `server`; without one, on a temporary PostgreSQL."""
        async with AsyncExitStack() as stack:
            if server is None:
                running = running_server()
                server = await asyncio.to_thread(running.__enter__)
                stack.push_async_callback(asyncio.to_thread, running.__exit__, None, None, None)
            url = await stack.enter_async_context(server.store())
            pool = await Pool.connect(url, schema=server.schema)
            stack.push_async_callback(pool.close)
            # Whole seconds, so that printed times are readable.
            clock = pool.clock = VirtualClock(datetime.now(UTC).replace(microsecond=0))
            await pool.query(testing_statement("set_clock"), clock.now())
            # Duly's defaults: the environment and duly.toml are meant for production.
            settings = Settings.model_construct(database_url=url, schema=server.schema)
            binding = Binding(pool, settings)
            stack.push_async_callback(binding.close)
            single = await SingleConnection.on(pool)
            stack.push_async_callback(single.close)
            test = cls(single, clock, settings, binding, await _lead(pool))
            stack.push_async_callback(test._worker.close)
            await _join(pool, test._worker.worker_id, "worker")
            if app is not None:
                test.use(app)
            if start is not None:
                await test.at(start)
            yield test

    # The app

    @property
    def app(self) -> Duly:
        """The app whose tasks `submit` knows: the test's own, or the last one passed to `use`."""
        return self._app

    def use(self, app: Duly) -> Duly:
        """Connect an app to this store until the end of the test: its tasks run here, and its submits go here."""
        self._binding.bind(app)
        self._tasks.maps.insert(0, app.tasks)
        self._app = app
        return app

    async def submit(self, task: str | Callable[..., Any], payload: Any = None, **options: Any) -> str:
        """`app.submit`."""
        return await self._app.submit(task, payload, **options)

    # Time

    @property
    def now(self) -> datetime:
        return self._clock.now()

    async def at(self, moment: datetime) -> None:
        """Set the clock and run nothing: the start of a test, or the end of an outage.

        The clock goes backwards only while there are no jobs.
        """
        wanted = check_moment("moment", moment)
        assert wanted is not None
        if not await self._pool.query(testing_statement("set_clock"), wanted):
            raise InvalidInput("moment", f"time does not go back: it is {self.now.isoformat()} and there are jobs")
        self._clock.set(wanted)
        self._looked_at = min(self._looked_at, wanted)

    async def advance(
        self,
        *,
        until: datetime | None = None,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        raise_errors: bool = False,
    ) -> list[Run]:
        """Let time pass, with everything that happens in it. Returns the runs that ended, in order.

        These include occurrences that the overlap or missed policy kept from running: see `status`. With
        `raise_errors`, time stops at the first error of a handler, which is raised.
        """
        by = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
        if (until is None) == (not by):
            raise InvalidInput("until", "give either a moment or a duration, such as days=30")
        target = check_moment("until", until) or self.now + by
        if target < self.now:
            raise InvalidInput("until", f"time does not go back: it is {self.now.isoformat()}")
        return await self._pass(target, raise_errors=raise_errors)

    async def drain(self, *, raise_errors: bool = False) -> list[Run]:
        """Run everything that is due now, retries included, until no run may start. Time stands still."""
        return await self._pass(self.now, raise_errors=raise_errors)

    # Steps

    async def _pass(self, target: datetime, *, raise_errors: bool) -> list[Run]:
        if asyncio.get_running_loop() is not self._loop:
            raise DulyError(
                "the fixture was set up on another event loop: use the same loop scope for fixtures and tests"
            )
        passes = 0
        errors = self._worker.errors
        errors.clear()
        due, queues = await self._step(target)
        while due or queues:
            if due:
                await self._fire(due)
            await self._worker.work(queues)
            if raise_errors and errors:
                raise errors[0]
            before = self.now
            due, queues = await self._step(target)
            passes = passes + 1 if self.now == before else 0
            if passes > _MAX_PASSES:
                raise DulyError(f"at {self.now.isoformat()} runs come back for ever; does a handler snooze for 0 s?")
        return await self._take_ended()

    async def _step(self, target: datetime) -> tuple[int, Sequence[str]]:
        self._steps += 1
        if self._steps % _VACUUM_EVERY == 0:
            await self._pool.query(testing_statement("vacuum"))
        now, due, queues = (await self._pool.query(testing_statement("step"), target))[0]
        self._clock.set(now)
        return due, queues

    async def _fire(self, due: int) -> None:
        """Fire all due jobs before any run starts, so that a run of this moment ends after them."""
        fired = self._firer.fired
        # The firer updates the wheel itself; jobs that were submitted, resumed or redefined are only in the store.
        if self._future.seconds_to_next() != 0:
            await self._loader.run_once()
        await self._firer.run_once()
        if due > 1 or self._firer.fired == fired:
            # The wheel may have known only some of the due jobs.
            await self._loader.run_once()
            await self._firer.run_once()

    async def _take_ended(self) -> list[Run]:
        """The runs that have ended since the last call."""
        rows = await self._pool.query(testing_statement("ended"), self._looked_at)
        keys = [(row["job_id"], row["scheduled_at"]) for row in rows]
        self._looked_at = self.now
        handed_out, self._handed_out = self._handed_out, set()
        self._handed_out = {key for key, row in zip(keys, rows, strict=True) if row["finished_at"] >= self._looked_at}
        wanted: dict[tuple[UUID, str], set[datetime]] = {}
        for key, row in zip(keys, rows, strict=True):
            if key not in handed_out:
                wanted.setdefault((row["job_id"], row["tenant"]), set()).add(row["scheduled_at"])
        found: dict[tuple[UUID, datetime], Run] = {}
        for (job_id, tenant), moments in wanted.items():
            for run in await self._read_runs(str(job_id), tenant, moments):
                found[job_id, run.scheduled_at] = run
        return [found[key] for key in keys if key in found]

    async def _read_runs(self, job_id: str, tenant: str, moments: set[datetime]) -> list[Run]:
        """The runs of a job at these times, as every reader sees them."""
        runs: list[Run] = []
        cursor: str | None = (max(moments) + timedelta(microseconds=1)).isoformat()
        while len(runs) < len(moments) and cursor is not None:
            limit = min(_PAGE, len(moments) - len(runs))
            page = await self._operations.for_tenant(tenant).runs.page(job_id, cursor=cursor, limit=limit)
            runs += [run for run in page.items if run.scheduled_at in moments]
            cursor = page.next_cursor
        return runs


async def _join(pool: Pool, node_id: UUID, kind: str) -> None:
    version = duly_version()
    await cluster.join(
        pool, node_id=node_id, kind=kind, name=_NAME, version=version, lease_seconds=_LEASE_SECONDS, info={}
    )


async def _lead(pool: Pool) -> int:
    """Begin the only term of the only shard. Returns its epoch."""
    node_id = uuid4()
    await _join(pool, node_id, "scheduler")
    return (await cluster.acquire(pool, node_id=node_id, shards=[0], epochs=[0]))[0]
