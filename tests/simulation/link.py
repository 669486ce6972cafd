"""The link to the store, and all faults that can happen on it.

The product's classes get a `SimPool` for a pool. A call travels to the model and its answer travels back. By seed,
either is slow, the call is refused, the answer is lost, or the link hangs until the time-out. A call that was sent
takes effect even if its sender has been stopped or killed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, TypeVar

from duly.clock import DatabaseClock
from duly.errors import StoreUnavailable
from simulation.loop import NodeLoop, Timeline, VirtualTime
from simulation.model import LockedBy, Model, Refused, Row, Transaction

T = TypeVar("T")

COMMAND_TIMEOUT = 20.0
# In seconds, as the product sets it for its connections.
IDLE_IN_TRANSACTION = 5.0


@dataclass
class Weather:
    """The chance of each fault for one call. All are zero when the faults are over."""

    slow: float = 0.0
    refused: float = 0.0
    lost: float = 0.0
    hung: float = 0.0
    longest: float = 10.0

    def clear(self) -> None:
        self.slow = self.refused = self.lost = self.hung = 0.0


class Server:
    """PostgreSQL as the nodes see it: the model behind a network."""

    def __init__(self, timeline: Timeline, model: Model, weather: Weather, executed: Callable[[Request], None]) -> None:
        self.timeline = timeline
        self.model = model
        self.weather = weather
        self.away = False
        self.executed = 0
        self._executed = executed

    def execute(self, request: Request) -> None:
        """Executes a call that has arrived."""
        if request.withdrawn or request.executed:
            return
        if self.away:
            request.fail()
            return
        transaction = request.transaction
        try:
            if request.name == "commit":
                assert transaction is not None
                self.model.commit(transaction)
                rows: list[Row] = []
            elif request.name == "clock":
                rows = [Row(now=self.timeline.database_now)]
            elif transaction is not None:
                rows = self.model.execute_within(transaction, request.name, request.args)
                self._watch_idle(transaction, request)
            else:
                rows = self.model.execute(request.name, request.args)
        except LockedBy as lock:
            lock.transaction.waiters.append(lambda: self.execute(request))
            return
        except Refused as error:
            request.executed = True
            request.fail(error if transaction is None else None)
            return
        request.executed = True
        self.executed += 1
        self._executed(request)
        request.answer(rows)

    def _watch_idle(self, transaction: Transaction, request: Request) -> None:
        def look() -> None:
            if transaction.open and request.pool.last_of.get(id(transaction)) is request:
                self.roll_back(transaction)

        request.pool.last_of[id(transaction)] = request
        self.timeline.after(IDLE_IN_TRANSACTION, look)

    def roll_back(self, transaction: Transaction) -> None:
        self.model.roll_back(transaction)


class Request:
    __slots__ = ("args", "back", "executed", "future", "name", "pool", "transaction", "withdrawn")

    def __init__(self, pool: SimPool, name: str, args: Sequence[Any], transaction: Transaction | None) -> None:
        self.pool = pool
        self.name = name
        self.args = args
        self.transaction = transaction
        self.future: asyncio.Future[list[Row]] = pool.loop.create_future()
        self.back: float | None = None
        self.executed = self.withdrawn = False

    def answer(self, rows: list[Row]) -> None:
        """Sends the answer back, unless the link is dead."""
        if self.back is not None:
            self.pool.timeline.after(self.back, lambda: self._arrive(rows))

    def fail(self, error: Exception | None = None) -> None:
        self.pool.timeline.after(0.002, lambda: self._arrive(error or StoreUnavailable("cannot be reached")))

    def _arrive(self, what: list[Row] | Exception) -> None:
        """Lets the waiting caller go on at its loop's next turn."""
        if self.future.done() or self.pool.loop.dead:
            return
        if isinstance(what, Exception):
            self.future.set_exception(what)
        else:
            self.future.set_result(what)


class Owner(Protocol):
    """The owner of a pool. `cut`: it cannot reach the server."""

    cut: bool


class SimPool:
    """A pool of connections, for one thread of one node."""

    def __init__(self, loop: NodeLoop, server: Server, owner: Owner, *, timeout: float) -> None:
        self.loop = loop
        self.timeline = loop.timeline
        self.server = server
        self.url = "simulation"
        self.schema = "duly"
        self.clock = DatabaseClock()
        self.last_of: dict[int, Request] = {}
        self.owner = owner
        self._timeout = timeout

    def has_step(self, number: int) -> bool:
        return True

    async def fetch(self, name: str, *args: Any) -> list[Row]:
        return await self._call(name, args)

    fetch_planned = fetch

    async def row(self, name: str, *args: Any) -> Row | None:
        rows = await self._call(name, args)
        return rows[0] if rows else None

    async def together(self, work: Callable[[Any], Awaitable[T]]) -> T:
        transaction = Transaction()
        try:
            result = await work(Within(self, transaction))
        except BaseException:
            # The connection is given back or closed; the server notices a little later.
            self.timeline.after(0.003, lambda: self.server.roll_back(transaction))
            raise
        try:
            await self._call("commit", (), transaction)
        except BaseException:
            self.timeline.after(IDLE_IN_TRANSACTION, lambda: self.server.roll_back(transaction))
            raise
        finally:
            self.last_of.pop(id(transaction), None)
        return result

    async def measure_clock(self) -> None:
        sent = VirtualTime.monotonic()
        rows = await self._call("clock", ())
        self.clock.observe(rows[0]["now"], sent, VirtualTime.monotonic())

    async def close(self) -> None:
        pass

    async def _call(self, name: str, args: Sequence[Any], transaction: Transaction | None = None) -> list[Row]:
        request = Request(self, name, args, transaction)
        self._send(request)
        try:
            return await request.future
        except asyncio.CancelledError:
            # The cancellation may or may not reach the server in time.
            if self.timeline.dice.random() < 0.5:
                request.withdrawn = True
            raise

    def _send(self, request: Request) -> None:
        timeline, weather = self.timeline, self.server.weather
        dice = timeline.dice
        there, back = dice.uniform(0.0005, 0.004), dice.uniform(0.0005, 0.004)
        execute = lambda: self.server.execute(request)  # noqa: E731
        request.back = back
        if self.owner.cut:
            fate = 1.0 if dice.random() < 0.5 else 2.0
        else:
            fate = dice.random()
            if fate >= (bad := weather.slow + weather.refused + weather.lost + weather.hung):
                timeline.after(there, execute)
                return
            if fate < weather.slow:
                if dice.random() < 0.5:
                    there = dice.uniform(0.0, weather.longest)
                else:
                    request.back = dice.uniform(0.0, weather.longest)
                timeline.after(there, execute)
                self._give_up(request, dice)
                return
            fate = 1.0 if fate < weather.slow + weather.refused else 3.0 if fate < bad - weather.hung else 2.0
        if fate == 1.0:
            timeline.after(there, request.fail)
        elif fate == 3.0:
            # The call takes effect, and the connection breaks before the answer.
            request.back = None
            timeline.after(there, execute)
            timeline.after(there + back, request.fail)
        else:
            # No answer comes back. The call arrives in time, later than its caller waits for it, or never.
            request.back = None
            if (arrives := dice.random()) < 0.7:
                timeline.after(there if arrives < 0.4 else dice.uniform(0, 2 * self._timeout), execute)
            self._give_up(request, dice)

    def _give_up(self, request: Request, dice: Random) -> None:
        def late() -> None:
            if not request.future.done():
                if dice.random() < 0.5:
                    request.withdrawn = True
                request._arrive(StoreUnavailable("did not answer in time"))

        self.timeline.after(self._timeout, late)


class Within:
    """Statements of one transaction."""

    def __init__(self, pool: SimPool, transaction: Transaction) -> None:
        self._pool = pool
        self._transaction = transaction

    def has_step(self, number: int) -> bool:
        return self._pool.has_step(number)

    async def fetch(self, name: str, *args: Any) -> list[Row]:
        return await self._pool._call(name, args, self._transaction)

    fetch_planned = fetch

    async def row(self, name: str, *args: Any) -> Row | None:
        rows = await self.fetch(name, *args)
        return rows[0] if rows else None

    async def together(self, work: Callable[[Any], Awaitable[T]]) -> T:
        return await work(self)
