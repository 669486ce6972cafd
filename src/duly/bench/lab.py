"""The equipment of every measurement: a server, the amount of work, the number of rounds, and a place for progress."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from duly.app import Duly
from duly.bench.figures import Figure
from duly.bench.processes import BenchFailed
from duly.bench.server import Server, Store, bench_settings
from duly.bench.worker_process import chatter, noop
from duly.clock import DatabaseClock
from duly.model import JobRequest
from duly.store.pool import Pool

SUBMIT_CHUNK = 5_000

Pass = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Lab:
    server: Server
    rounds: int
    scale: float
    say: Callable[[str], None]
    profile: Path | None = None
    jobs: int | None = None
    """Jobs that `registered` and `steady` register, and runs that wait in `backlog`; None: by the scale."""
    seconds: int | None = None
    """Duration of `steady` and `handlers`; None: by the scale."""

    def scaled(self, count: int, *, least: int = 1) -> int:
        return max(least, round(count * self.scale))

    async def in_rounds(self, what: str, passes: Mapping[str, Pass]) -> None:
        """Run every pass once per round, in alternating order, so that drift favours none."""
        for number in range(1, self.rounds + 1):
            for name, one_pass in list(passes.items())[:: 1 if number % 2 else -1]:
                self.say(f"{what}: round {number} of {self.rounds}, {name}")
                await one_pass()


Measure = Callable[[Lab], Awaitable[list[Figure]]]


@asynccontextmanager
async def application(store: Store) -> AsyncIterator[Duly]:
    """An application as a user would write it, with the bench's tasks, connected to a store."""
    app = Duly(settings=bench_settings(store.url))
    app.task("noop")(noop)
    app.task("chatter")(chatter)

    async def stamp(mark: int) -> None:
        """Only its name is used: the bench's workers have the task that records its start."""

    app.task("stamp")(stamp)
    await app.operations()
    try:
        yield app
    finally:
        await app.close()


async def submit_all(app: Duly, requests: Iterator[JobRequest]) -> int:
    """Submit in chunks, each built just before it is sent."""
    count = 0
    while chunk := [request for _, request in zip(range(SUBMIT_CHUNK), requests, strict=False)]:
        count += len(await app.submit_many(chunk))
    return count


async def database_clock(store: Store) -> DatabaseClock:
    """The store's clock relative to this machine's monotonic clock, measured precisely."""
    pool = await Pool.connect(store.url, size=1)
    try:
        for _ in range(20):
            await pool.measure_clock()
    finally:
        await pool.close()
    return pool.clock


async def verify(store: Store, expected: int, who: str) -> None:
    """Check that every run is recorded, none is left, none is there twice, and none was retried."""
    outcome = await store.outcome()
    if (outcome.recorded, outcome.succeeded, outcome.queued, outcome.claims) != (expected, expected, 0, 0):
        raise BenchFailed(f"{who}: {expected:,} runs should be recorded once each; the store has {outcome}")
