"""A driver's end of the connection to the bench, and the base of all drivers. Only the standard library is used: peers'
environments have no Duly.

The bench starts `driver URL` and writes orders to its stdin, one JSON object per line; each answer is a line on stdout.

| order | answer |
| --- | --- |
| `{"do": "about"}` | `{"title", "versions", "settings", "server", "processes", "submits_in_worker"}` |
| `{"do": "prepare"}` | `{"done"}` when the peer's tables are there |
| `{"do": "submit", "count", "mark_us", "due_us", "every_us"}` | `{"done", "seconds"}` when all are submitted |
| `{"do": "trickle", "count", "per_second"}` | `{"done"}` when all were submitted, one by one |
| `{"do": "work", "stamping"}` | `{"ready"}` when connected; nothing has been claimed yet |
| `{"do": "go"}` | `{"count", "at_us"}` repeatedly: the number of handlers that have ended, and the time of the last |
| `{"do": "end"}` | `{"stamps"}`: the mark of each handler, and the time at which it started |
| `{"do": "left"}` | `{"left"}`: jobs that are not done yet, by the peer's own tables |

Every job carries a mark, and is counted when its handler runs. Marks and stamps are microseconds of the machine's
monotonic clock: their difference is the delay, whether the mark is the call of submit or the due time. `mark_us`,
`due_us` (since 1970) and `every_us` come together and make due times; without them jobs are due at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

_TELL_SECONDS = 0.02
# The same as the bench of Duly gives to `submit_many`.
CHUNK = 5_000


def monotonic_us() -> int:
    return time.monotonic_ns() // 1000


class Job(NamedTuple):
    mark: int
    due_us: int | None = None
    """Microseconds since 1970; None: now."""

    @property
    def due_in_seconds(self) -> float:
        assert self.due_us is not None
        return self.due_us / 1e6 - time.time()


class Tally:
    """The handlers that ran in this process. Each calls `ran` once."""

    def __init__(self) -> None:
        self.count = 0
        self.at_us = 0
        self.stamping = False
        self.stamps: list[tuple[int, int]] = []

    def ran(self, mark: int) -> None:
        self.note(mark, monotonic_us())

    def note(self, mark: int, at_us: int) -> None:
        """As `ran`, for a handler that ran in another process."""
        self.at_us = at_us
        if self.stamping:
            self.stamps.append((mark, at_us))
        self.count += 1


# One per process, because some peers import handlers by name and cannot pass one to them.
TALLY = Tally()


class Driver:
    """A peer. Subclasses implement these methods with the peer's own public interface."""

    title: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    """Packages whose versions are reported."""
    settings: ClassVar[str]
    """Its settings for throughput, in words."""
    server: ClassVar[str] = "postgresql"
    """The kind of server behind the URL: `postgresql` or `redis`."""
    processes: ClassVar[int | None] = None
    """Maximum number of worker processes; None: any."""
    submits_in_worker: ClassVar[bool] = False
    """Whether its workers see at once only jobs that were submitted in their own process."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def prepare(self) -> None:
        """Make the tables."""

    async def open(self) -> None:
        """Connect for submitting."""

    async def submit(self, jobs: list[Job]) -> None:
        """Submit all jobs in the peer's fastest way. Either all have due times, or none has."""
        raise NotImplementedError

    async def submit_one(self, job: Job) -> None:
        """Submit one job that is due now."""
        await self.submit([job])

    async def connect_worker(self) -> None:
        """Do everything that can be done before the first claim."""

    async def work(self, ended: asyncio.Event) -> None:
        """Claim and run jobs; return soon after `ended` is set."""
        raise NotImplementedError

    async def left(self) -> int:
        """The number of jobs that are not done."""
        raise NotImplementedError


def serve(driver: type[Driver]) -> None:
    """Carry out orders until the connection ends."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    loop: Any = None
    with contextlib.suppress(ImportError):  # some peers recommend uvloop and install it
        import uvloop

        loop = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(_obey(driver, sys.argv[1]))


async def _obey(kind: type[Driver], url: str) -> None:
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    driver: Driver | None = None
    opened = False
    while line := await orders.readline():
        order = json.loads(line)
        if order["do"] == "about":
            _tell(
                title=kind.title,
                versions={name: importlib.metadata.version(name) for name in kind.packages},
                settings=kind.settings,
                server=kind.server,
                processes=kind.processes,
                submits_in_worker=kind.submits_in_worker,
            )
            continue
        driver = driver or kind(url)
        match order["do"]:
            case "prepare":
                await driver.prepare()
                _tell(done=True)
                continue
            case "work":
                await _work(driver, orders, order)
                return
        if not opened:
            await driver.open()
            opened = True
        match order["do"]:
            case "submit":
                _tell(done=True, seconds=await _submit(driver, order))
            case "trickle":
                await _trickle(driver, order)
                _tell(done=True)
            case "left":
                _tell(left=await driver.left())


async def _submit(driver: Driver, order: dict[str, Any]) -> float:
    began = time.perf_counter()
    jobs = _jobs(order)
    while chunk := [job for _, job in zip(range(CHUNK), jobs, strict=False)]:
        await driver.submit(chunk)
    return time.perf_counter() - began


def _jobs(order: dict[str, Any]) -> Iterator[Job]:
    for number in range(order["count"]):
        if "due_us" in order:
            after_us = number * order["every_us"]
            yield Job(order["mark_us"] + after_us, order["due_us"] + after_us)
        else:
            yield Job(number)


async def _trickle(driver: Driver, order: dict[str, Any]) -> None:
    for number in range(order["count"]):
        # A little uneven, so that submits do not fall into step with the peer's own polling.
        await asyncio.sleep((0.75 + 0.5 * (number * 0.618 % 1)) / order["per_second"])
        await driver.submit_one(Job(monotonic_us()))


async def _work(driver: Driver, orders: asyncio.StreamReader, order: dict[str, Any]) -> None:
    TALLY.stamping = order["stamping"]
    await driver.connect_worker()
    _tell(ready=True)
    if not await orders.readline():
        return
    ended = asyncio.Event()
    working = asyncio.create_task(driver.work(ended))
    ending = asyncio.create_task(_until_end(driver, orders))
    telling = asyncio.create_task(_tell_counts())
    await asyncio.wait([working, ending], return_when=asyncio.FIRST_COMPLETED)
    ended.set()
    await working  # raises its error, if it ended by itself
    telling.cancel()
    ending.cancel()
    _tell(count=TALLY.count, at_us=TALLY.at_us, stamps=TALLY.stamps)


async def _until_end(driver: Driver, orders: asyncio.StreamReader) -> None:
    """Carry out the orders of a working process: to submit, and to end."""
    while line := await orders.readline():
        order = json.loads(line)
        if order["do"] != "trickle":
            return
        await _trickle(driver, order)
        _tell(done=True)


async def _tell_counts() -> None:
    last = 0
    while True:
        await asyncio.sleep(_TELL_SECONDS)
        if TALLY.count != last:
            last = TALLY.count
            _tell(count=last, at_us=TALLY.at_us)


def _tell(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
