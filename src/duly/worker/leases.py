"""Heartbeats, from a thread with its own event loop and its own connection.

A handler that blocks the worker's event loop, or computes for seconds, must not lose its leases. News from a
heartbeat (lost leases, cancelled runs) is handed to the worker's loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import UUID

from duly.errors import DulyError
from duly.store import runs
from duly.store.pool import Pool

log = logging.getLogger("duly.worker")

# Fraction of the lease that is left when handlers are told to stop, so that they end before the lease does.
MARGIN = 0.15
# Pause between checks for that moment, as a fraction of the lease.
_WATCH = 0.03
# Heartbeats under way at once: one, and more only while it is late.
AT_ONCE = 3
# Longest pause after a heartbeat that failed.
RETRY_SECONDS = 0.5
# Longest wait of `start` for the first heartbeat.
START_SECONDS = 5.0
# Longest wait of `stop` for the heartbeat under way.
STOP_SECONDS = 3.0


class LeaseKeeper:
    """Extends the leases of the claims it holds. Callbacks run on the worker's loop."""

    def __init__(
        self,
        url: str,
        *,
        worker_id: UUID,
        lease_seconds: float,
        interval: float,
        pgbouncer: bool,
        schema: str,
        join: Callable[[Pool], Awaitable[None]],
        lost: Callable[[UUID], None],
        cancelled: Callable[[UUID, int], None],
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """`look` is called in the heartbeat's thread, every few hundredths of the lease."""
        self._url = url
        self._worker_id = worker_id
        self._lease = lease_seconds
        self._interval = interval
        self._pgbouncer = pgbouncer
        self._schema = schema
        self._join = join
        self._lost = lost
        self._cancelled = cancelled
        self._look = look
        self._main = asyncio.get_running_loop()
        # Per claim: the monotonic time until which its lease is trusted. Shared with the worker's loop.
        self._trusted_until: dict[UUID, float] = {}
        self._lock = threading.Lock()
        self._first = self._main.create_future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poked: asyncio.Event | None = None
        self._beating: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._stopping = False
        #: When the last heartbeat was answered, by the monotonic clock.
        self.beat_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="duly-heartbeat", daemon=True)

    async def start(self) -> None:
        """Returns when the first heartbeat was answered or has failed, and at the latest after a while.

        Once handlers compute, this thread gets the interpreter only now and then: opening a connection, with its many
        small steps, can then take longer than the first lease.
        """
        self._begin()
        await asyncio.wait([self._first], timeout=min(self._interval, START_SECONDS))

    def _begin(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._stopping = True
        self.poke()
        await asyncio.to_thread(self._thread.join, STOP_SECONDS)
        if self._thread.is_alive() and self._loop is not None and self._beating is not None:
            # The heartbeat under way is not answered: give it up.
            self._loop.call_soon_threadsafe(self._beating.cancel)
            await asyncio.to_thread(self._thread.join, STOP_SECONDS)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def poke(self) -> None:
        """Sends a heartbeat now."""
        if self._loop is not None and self._poked is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._poked.set)

    def hold(self, claim_id: UUID, sent: float) -> bool:
        """Keeps the lease of a claim whose statement was sent at `sent` (monotonic): the lease is not older than that.

        Returns False if the answer took so long that the lease may have ended. Then the claim is left to rescue.
        """
        until = sent + self._lease * (1 - MARGIN)
        if until <= time.monotonic():
            return False
        with self._lock:
            self._trusted_until[claim_id] = until
        return True

    def holds(self, claim_id: UUID) -> bool:
        """Whether the claim's lease is trusted at this moment. If not, the claim is given up at once.

        A process that was stopped for longer than its lease must not begin more handlers when it goes on: those that
        are ready on its loop may come before this thread's news that the lease is over.
        """
        until = self._trusted_until.get(claim_id)
        if until is not None and until > time.monotonic():
            return True
        self._give_up_expired()
        return False

    def release(self, claim_id: UUID) -> None:
        with self._lock:
            self._trusted_until.pop(claim_id, None)

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._beat_until_stopped())

    async def _beat_until_stopped(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._beating = asyncio.current_task()
        self._poked = asyncio.Event()
        # Beside the heartbeats, not between them: a heartbeat that hangs must not delay telling handlers to stop.
        watching = asyncio.create_task(self._watch())
        pool: Pool | None = None
        try:
            while not self._stopping:
                began = time.monotonic()
                try:
                    if pool is None:
                        pool = await Pool.connect(
                            self._url, size=AT_ONCE, pgbouncer=self._pgbouncer, connect_timeout=self._interval,
                            schema=self._schema,
                            # A later answer extends nothing: trust counts from when the heartbeat was sent.
                            command_timeout=self._lease * (1 - MARGIN),
                        )  # fmt: skip
                    await self._beat_in_time(pool)
                    # From beginning to beginning: a heartbeat that took long must not delay the next one.
                    pause = max(0.0, began + self._interval - time.monotonic())
                except DulyError as error:
                    log.warning("a heartbeat failed: %s", error)
                    pause = min(self._interval / 4, RETRY_SECONDS)
                except Exception:
                    # This thread must go on after any error: without it every lease is lost, unnoticed.
                    log.exception("a heartbeat failed")
                    pause = min(self._interval / 4, RETRY_SECONDS)
                self._tell(self._first_is_over)
                self._poked.clear()
                if not self._stopping:
                    try:
                        async with asyncio.timeout(pause):
                            await self._poked.wait()
                    except TimeoutError:
                        pass
        finally:
            watching.cancel()
            for beat in self._under_way:
                beat.cancel()
            with self._lock:
                self._trusted_until.clear()  # no heartbeat extends them any more
            if pool is not None:
                await pool.close()

    async def _watch(self) -> None:
        while True:
            self._give_up_expired()
            self._look()
            await asyncio.sleep(self._lease * _WATCH)

    async def _beat_in_time(self, pool: Pool) -> None:
        """A heartbeat, and when it is late others beside it, each on a connection of its own.

        On links that hang only a new one comes through. In a process that is slow it is the first one: given up and
        sent again, it would never be answered. Those that are left end by themselves.
        """
        beats: set[asyncio.Task[None]] = set()
        while True:
            if len(self._under_way) < AT_ONCE:
                beats.add(self._begun_beat(pool))
            done, beats = await asyncio.wait(
                beats, timeout=self._interval / 2, return_when=asyncio.FIRST_COMPLETED
            )  # fmt: skip
            if any(beat.exception() is None for beat in done):
                return
            if not beats:
                await done.pop()  # raises its error
            if done:
                await asyncio.sleep(min(self._interval / 4, RETRY_SECONDS))

    def _begun_beat(self, pool: Pool) -> asyncio.Task[None]:
        beat = asyncio.get_running_loop().create_task(self._beat(pool))
        self._under_way.add(beat)
        beat.add_done_callback(self._beat_is_over)
        return beat

    def _beat_is_over(self, beat: asyncio.Task[None]) -> None:
        self._under_way.discard(beat)
        if not beat.cancelled() and (error := beat.exception()) is not None:
            log.debug("a heartbeat failed: %s", error)

    async def _beat(self, pool: Pool) -> None:
        sent = time.monotonic()
        with self._lock:
            known = set(self._trusted_until)
        held, joined = await runs.heartbeat(pool, worker_id=self._worker_id, lease_seconds=self._lease, claims=known)
        self.beat_at = time.monotonic()
        with self._lock:
            for claim_id in held.keys() & self._trusted_until.keys():
                # A late heartbeat takes nothing from one that was sent after it.
                trusted = self._trusted_until[claim_id]
                self._trusted_until[claim_id] = max(trusted, sent + self._lease * (1 - MARGIN))
            # Held before the heartbeat and after it, but not found by it.
            gone = (known & self._trusted_until.keys()) - held.keys()
            for claim_id in gone:
                del self._trusted_until[claim_id]
        for claim_id in gone:
            self._tell(self._lost, claim_id)
        for claim_id, ordinals in held.items():
            for ordinal in ordinals:
                self._tell(self._cancelled, claim_id, ordinal)
        if not joined:
            log.warning("this worker was not known to the store any more; it joins again")
            await self._join(pool)

    def _first_is_over(self) -> None:
        if not self._first.done():
            self._first.set_result(None)

    def _give_up_expired(self) -> None:
        now = time.monotonic()
        with self._lock:
            expired = [claim_id for claim_id, until in self._trusted_until.items() if until <= now]
            for claim_id in expired:
                del self._trusted_until[claim_id]
        for claim_id in expired:
            log.warning("no heartbeat came through in time: giving up claim %s", claim_id)
            self._tell(self._lost, claim_id)

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        if not self._main.is_closed():
            self._main.call_soon_threadsafe(callback, *args)
