"""The measurements of a peer: each uses fresh tables and the peer's own processes, and returns figures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from duly.bench.child import monotonic_us
from duly.bench.figures import percentile
from duly.bench.server import Server, Store, connect
from peers.driving import PeerFailed, Process, driven, until_counted, working
from peers.results import Tool
from peers.setting_up import Command, redis_facts

PER_SECOND = 20
# Sent first and not counted: connections are opened and statements prepared with them.
WARM_UP = 10
LAG_EVERY_US = 10_000
HOT_JOBS = 50_000
# Between the last submit and the first due time: for the worker's start.
_START_SECONDS = 4.0
# Clocks of client and server are compared to within this; a start that is earlier than that is a start too early.
_TOLERANCE_US = 5_000
# Number of times that this time is doubled before the measurement fails.
_LEADS = 3
_EMPTY = Store("template1", "")
_PILOT_JOBS = (1_000, 10_000, 60_000)


class _TooSoon(PeerFailed):
    """Jobs were due before everything was ready."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amount of work of one run of the bench."""

    seconds: float
    """Duration of a submit or a drain."""
    max_jobs: int
    hot_seconds: float
    hot_jobs: int
    latency_jobs: int
    lag_jobs: int
    idle_seconds: float
    stalled_seconds: float
    scale: Mapping[str, float]
    """The amount of work of each measurement of `duly bench`, as a factor."""


FULL = Sizes(
    seconds=4,
    max_jobs=400_000,
    hot_seconds=8,
    hot_jobs=HOT_JOBS,
    latency_jobs=160,
    lag_jobs=2_000,
    idle_seconds=10,
    stalled_seconds=45,
    scale={"submit": 1.5, "drain": 1, "latency": 160 / 300, "lag": 1, "hot-second": 1},
)
QUICK = Sizes(
    seconds=1.5,
    max_jobs=80_000,
    hot_seconds=2,
    hot_jobs=20_000,
    latency_jobs=60,
    lag_jobs=300,
    idle_seconds=6,
    stalled_seconds=15,
    scale={"submit": 0.4, "drain": 0.25, "latency": 0.2, "lag": 0.15, "hot-second": 0.4},
)


@dataclass(slots=True)
class Peer:
    command: Command
    tool: Tool
    processes: int | None
    submits_in_worker: bool
    pace: dict[str, float] = field(default_factory=dict)
    """Jobs per second, as measured so far: `submit`, `drain`, and `due` for submits with due times of their own."""
    prepared: Store | None = None
    """A database with the peer's empty tables; every measurement gets a copy."""

    def lasting(self, seconds: float, pace: str, most: int) -> int:
        """A round number of jobs that take about this long."""
        return min(most, _round(self.pace[pace] * seconds))


@dataclass(frozen=True, slots=True)
class Ground:
    """The servers and sizes of all measurements."""

    server: Server
    redis: Path | None
    sizes: Sizes
    kept: AsyncExitStack
    """Resources that are released when the bench ends."""


Measure = Callable[[Ground, Peer], Awaitable[dict[str, float]]]


async def pilot(ground: Ground, peer: Peer) -> None:
    """Measure the peer's speed with growing numbers of jobs. A peer that does not work at all fails here."""
    for jobs in _PILOT_JOBS:
        async with _fresh(ground, peer) as url:
            async with driven(peer.command, url) as client:
                peer.pace["submit"] = jobs / await _submitted(client, jobs)
            peer.pace["drain"] = await _drain(ground, peer, url, jobs, 1)
            async with driven(peer.command, url) as client:
                hour_us = 3_600_000_000
                due = 50
                order = {"mark_us": 0, "due_us": _epoch_us() + hour_us, "every_us": LAG_EVERY_US}
                peer.pace["due"] = due / await _submitted(client, due, **order)
        if peer.pace["drain"] < jobs:
            return


async def submit(ground: Ground, peer: Peer) -> dict[str, float]:
    jobs = peer.lasting(ground.sizes.seconds, "submit", ground.sizes.max_jobs)
    async with _fresh(ground, peer) as url, driven(peer.command, url) as client:
        await ground.server.settle()
        seconds = await _submitted(client, jobs)
        if (left := (await client.ask("left"))["left"]) != jobs:
            raise PeerFailed(f"{jobs:,} jobs were submitted, and {left:,} are there")
    peer.tool.jobs["submit"] = jobs
    peer.pace["submit"] = jobs / seconds
    return {"submit": jobs / seconds}


async def drain(ground: Ground, peer: Peer) -> dict[str, float]:
    jobs = peer.lasting(ground.sizes.seconds, "drain", ground.sizes.max_jobs)
    figures = {}
    for processes in (1, 2):
        if peer.processes is None or processes <= peer.processes:
            async with _fresh(ground, peer) as url:
                async with driven(peer.command, url) as client:
                    await _submitted(client, jobs)
                figures[f"drain_{processes}"] = await _drain(ground, peer, url, jobs, processes)
    peer.tool.jobs["drain"] = jobs
    peer.pace["drain"] = figures["drain_1"]
    return figures


async def latency(ground: Ground, peer: Peer) -> dict[str, float]:
    jobs = WARM_UP + ground.sizes.latency_jobs
    async with (
        _fresh(ground, peer) as url,
        driven(peer.command, url) as client,
        working(peer.command, url, 1, stamping=True) as workers,
    ):
        await ground.server.settle()
        workers[0].tell("go")
        submitter = workers[0] if peer.submits_in_worker else client
        await submitter.ask("trickle", count=jobs, per_second=PER_SECOND)
        await until_counted(workers, jobs, stalled_seconds=ground.sizes.stalled_seconds)
        await workers[0].end()
    peer.tool.jobs["latency"] = ground.sizes.latency_jobs
    return _spread("latency", [at_us - mark for mark, at_us in sorted(workers[0].stamps)[WARM_UP:]])


async def lag(ground: Ground, peer: Peer) -> dict[str, float]:
    jobs = ground.sizes.lag_jobs
    lead = _START_SECONDS + 1.5 * jobs / peer.pace["due"]
    stamps, _ = await _due_in_time(ground, peer, jobs, lead, every_us=LAG_EVERY_US)
    lags = [at_us - mark for mark, at_us in stamps]
    if min(lags) < -_TOLERANCE_US:
        raise PeerFailed(f"a job started {-min(lags) / 1000:.0f} ms before it was due")
    peer.tool.jobs["lag"] = jobs
    return _spread("lag", lags)


async def hot_second(ground: Ground, peer: Peer) -> dict[str, float]:
    jobs = peer.lasting(ground.sizes.hot_seconds, "drain", ground.sizes.hot_jobs)
    # Some workers fetch jobs that are due later at once, about as fast as they run jobs.
    lead = _START_SECONDS + 1.5 * jobs / peer.pace["submit"] + jobs / peer.pace["drain"]
    _, seconds = await _due_in_time(ground, peer, jobs, lead, every_us=0)
    peer.tool.jobs["hot-second"] = jobs
    return {"hot_second": seconds}


async def idle(ground: Ground, peer: Peer) -> dict[str, float]:
    async with _fresh(ground, peer) as url, working(peer.command, url, 1) as workers:
        workers[0].tell("go")
        if peer.tool.server == "redis":
            assert ground.redis is not None
            socket = ground.redis

            async def commands() -> int:
                return int((await redis_facts(socket, "stats"))["total_commands_processed"])

            rate = await per_second(commands, ground.sizes.idle_seconds)
        else:
            rate = await transactions_per_second(url, ground.sizes.idle_seconds)
        workers[0].check_alive()
        await workers[0].end()
    return {"idle": rate}


MEASURES: Mapping[str, Measure] = {
    "submit": submit,
    "drain": drain,
    "latency": latency,
    "lag": lag,
    "hot-second": hot_second,
    "idle": idle,
}


async def transactions_per_second(url: str, seconds: float) -> float:
    """Transactions of one database, read through a connection to another one."""
    name, _, rest = url.partition("?")
    base, _, database = name.rpartition("/")
    connection = await connect(f"{base}/postgres?{rest}")
    try:

        async def transactions() -> int:
            sql = "select xact_commit + xact_rollback from pg_stat_database where datname = $1"
            return int(await connection.fetchval(sql, database))

        return await per_second(transactions, seconds)
    finally:
        await connection.close()


async def per_second(count: Callable[[], Awaitable[int]], seconds: float) -> float:
    """The growth of a counter per second, after the start is over."""
    await asyncio.sleep(seconds / 2)
    before, began = await count(), time.monotonic()
    await asyncio.sleep(seconds)
    return (await count() - before) / (time.monotonic() - began)


@asynccontextmanager
async def _fresh(ground: Ground, peer: Peer) -> AsyncIterator[str]:
    """A database of its own with the peer's tables, or an empty Redis."""
    if peer.tool.server == "redis":
        url = f"unix://{ground.redis}"
        await _prepare(peer, url)
        yield url
        return
    if peer.prepared is None:
        prepared = await ground.kept.enter_async_context(ground.server.store(_EMPTY))
        await _prepare(peer, prepared.url)
        peer.prepared = prepared
    async with ground.server.store(peer.prepared) as store:
        yield store.url


async def _prepare(peer: Peer, url: str) -> None:
    async with driven(peer.command, url) as client:
        await client.ask("prepare")


async def _submitted(client: Process, jobs: int, **due: int) -> float:
    """Seconds that the submits took."""
    return float((await client.ask("submit", count=jobs, **due))["seconds"])


async def _drain(ground: Ground, peer: Peer, url: str, jobs: int, processes: int) -> float:
    """Jobs per second, from the first run that is known to the last, so without the worker's start."""
    await _settle(ground, peer, url)
    async with working(peer.command, url, processes) as workers:
        go_us = monotonic_us()
        for worker in workers:
            worker.tell("go")
        ended_us = await until_counted(workers, jobs, stalled_seconds=ground.sizes.stalled_seconds)
        for worker in workers:
            await worker.end()
    await _verify(peer, url, jobs, workers)
    began_us, before = min((worker.first[1], worker.first[0]) for worker in workers if worker.first[0])
    if before * 2 > jobs:  # all were done before the second look
        began_us, before = go_us, 0
    return (jobs - before) / (ended_us - began_us) * 1e6


async def _due_in_time(
    ground: Ground, peer: Peer, jobs: int, lead: float, *, every_us: int
) -> tuple[list[tuple[int, int]], float]:
    """Repeats a measurement with more time to get ready, if the jobs were due too soon."""
    for _ in range(_LEADS - 1):
        async with _fresh(ground, peer) as url:
            try:
                return await _due(ground, peer, url, jobs, lead, every_us=every_us)
            except _TooSoon:
                lead *= 2
    async with _fresh(ground, peer) as url:
        return await _due(ground, peer, url, jobs, lead, every_us=every_us)


async def _due(
    ground: Ground, peer: Peer, url: str, jobs: int, lead: float, *, every_us: int
) -> tuple[list[tuple[int, int]], float]:
    """Submit jobs that are due later, and let one worker run them: its stamps, and seconds since the first due time."""
    mark_us, due_us = monotonic_us() + round(lead * 1e6), _epoch_us() + round(lead * 1e6)
    # Whole milliseconds: some peers keep no smaller unit.
    mark_us, due_us = mark_us - due_us % 1000, due_us - due_us % 1000
    async with driven(peer.command, url) as client:
        await _submitted(client, jobs, mark_us=mark_us, due_us=due_us, every_us=every_us)
    if every_us == 0:
        await _settle(ground, peer, url)
    async with working(peer.command, url, 1, stamping=every_us > 0) as workers:
        workers[0].tell("go")
        if monotonic_us() > mark_us:
            raise _TooSoon("the jobs were due before the worker was ready: this machine was too busy")
        last_due = (mark_us + jobs * every_us) / 1e6
        ended_us = await until_counted(
            workers, jobs, stalled_seconds=ground.sizes.stalled_seconds, by=last_due if every_us == 0 else mark_us / 1e6
        )
        await workers[0].end()
    await _verify(peer, url, jobs, workers)
    return workers[0].stamps, (ended_us - mark_us) / 1e6


async def _settle(ground: Ground, peer: Peer, url: str) -> None:
    """Analyze and checkpoint now, so that autovacuum and the checkpointer do not do it during the measurement."""
    if peer.tool.server == "postgresql":
        connection = await connect(url)
        try:
            await connection.execute("analyze", timeout=600)
        finally:
            await connection.close()
    await ground.server.settle()


async def _verify(peer: Peer, url: str, jobs: int, workers: list[Process]) -> None:
    """Check that every handler ran once, and that the peer has nothing left to do."""
    ran = sum(worker.count for worker in workers)
    if ran != jobs:
        raise PeerFailed(f"{jobs:,} jobs were run {ran:,} times")
    async with driven(peer.command, url) as client:
        if left := (await client.ask("left"))["left"]:
            raise PeerFailed(f"all {jobs:,} jobs ran, and {left:,} of them are still not done")


def _spread(name: str, delays_us: list[int]) -> dict[str, float]:
    return {f"{name}_p{percent}": percentile(delays_us, percent) / 1000 for percent in (50, 99)}


def _round(number: float) -> int:
    """The number rounded to two digits, at least 100."""
    whole = max(100, round(number))
    step = int(10 ** (len(str(whole)) - 2))
    return whole // step * step


def _epoch_us() -> int:
    return time.time_ns() // 1000
