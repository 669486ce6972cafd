"""One worker: claimer → executor → completer, with the lease keeper beside them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from duly.config import Settings
from duly.errors import DulyError, StoreUnavailable
from duly.figures import Figures
from duly.model import Buried, Claim, ClaimedRun, Declarer, TaskDefaults
from duly.states import RunFlag
from duly.store import cluster
from duly.store.notifier import Notifier
from duly.store.pool import Pool
from duly.tracing import tracing
from duly.worker.blocking import Blocking
from duly.worker.claimer import Claimer, weights_of
from duly.worker.completer import Completer
from duly.worker.execution import Execution, StopReason
from duly.worker.executor import Executor, Outcome
from duly.worker.handler.errors import error_text
from duly.worker.handler.ledger import Ledger
from duly.worker.handler.progress import ProgressWriter
from duly.worker.handler.task import Task
from duly.worker.handler.transactions import Transactions
from duly.worker.leases import LeaseKeeper
from duly.worker.offering import Offering
from duly.worker.offers import Offers
from duly.worker.pings import Pings
from duly.worker.run_logs import RunLogs
from duly.worker.targets import Isolated, Target
from duly.worker.wear import Wear

if TYPE_CHECKING:
    from duly.store.pool import Connection

log = logging.getLogger("duly.worker")

_CANCELLED = int(RunFlag.CANCELLED)

# Longest time between looks for cancelled runs where no notification comes: a handler hears of it within a second.
CANCEL_SECONDS = 0.9
# At shutdown: time to write the last outcomes, and time to sign off.
WRITE_SECONDS = 5.0
LEAVE_SECONDS = 2.0
# Handler threads per process; more would only wait for one another.
MAX_THREADS = 64
# Pause between two reports to the store about hanging threads.
REPORT_SECONDS = 1.0
# A worker whose claims have not been answered for this long is not ready.
QUIET_SECONDS = 10.0

Observer = Callable[[ClaimedRun, Outcome | None], None]


class Worker:
    """One worker. Its id is new at every start: a restarted worker is another worker and inherits nothing.

    With `tenants` it claims runs of those tenants only. `wear`: of a process that is replaced when it is worn out.
    """

    def __init__(
        self,
        pool: Pool,
        tasks: Mapping[str, Task],
        settings: Settings,
        *,
        name: str,
        version: str,
        queues: Sequence[str] | Mapping[str, int] = ("default",),
        tenants: Sequence[str] = (),
        concurrency: int | None = None,
        notifier: Notifier | None = None,
        observer: Observer | None = None,
        app: Mapping[str, Any] | None = None,
        targets: Mapping[str, Target] | None = None,
        isolated: Isolated | None = None,
        worker_id: UUID | None = None,
        wear: Wear | None = None,
        defaults: Mapping[str, TaskDefaults] | None = None,
        pings: Pings | None = None,
        figures: Figures | None = None,
        shards: int | None = None,
        run_logs: RunLogs | None = None,
    ) -> None:
        """`app`: the application and deploy that it is of. `defaults`: those of its tasks that it offers; by default
        all that they set. `shards`: number of the store's shards. `run_logs`: keeps what
        handlers log and print."""
        self._wear = wear
        self.figures = figures or Figures("worker")
        self.figures.utilization = lambda: min(1.0, self._in_flight / self._concurrency)
        self.worker_id: UUID = worker_id or uuid4()
        self._pool = pool
        self._settings = settings
        self.node: str | None = name
        self.shards = shards
        self._run_logs = run_logs
        if run_logs is not None:  # the shortest way, because it is called for every line
            self.logged, self.printed = run_logs.logged, run_logs.printed  # type: ignore[method-assign]
        self._version = version
        self._queues = weights_of(queues)
        self._tenants = list(dict.fromkeys(tenants))
        self._tasks = tasks
        self._concurrency = concurrency or settings.concurrency
        self._observer = observer
        self._app = app
        self._in_flight = 0
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._targets = targets or {}
        self._isolated = isolated
        self._pings = pings
        self._transactions = Transactions(
            settings.direct_url or pool.url,
            pool.clock,
            size=settings.handler_pool_size,
            pgbouncer=settings.pgbouncer and settings.direct_url is None,
            schema=pool.schema,
        )
        self._progress = ProgressWriter(pool)
        if defaults is None:
            defaults = {task_name: task.defaults for task_name, task in tasks.items()}
        self._offering = Offering(pool, defaults, by=Declarer.from_info(app or {}))
        self._offers = Offers(pool, queues=self._queues, missing_seconds=settings.missing_task_seconds)
        self._thread_tasks = sorted(
            name for name, task in tasks.items() if not task.is_async and task.isolation == "thread"
        )
        self._reported_hanging = 0
        self._reporting: asyncio.Task[None] | None = None
        blocking = Blocking(tasks)
        self.executor = Executor(
            tasks,
            pool.clock,
            self._ended,
            threads=min(self._concurrency, MAX_THREADS),
            threads_changed=self._threads_changed,
            offers=self._offers,
            blocking=blocking,
            spare_threads=wear is not None,
            host=self,
            ledger=Ledger(pool, retention_seconds=settings.ledger_retention_seconds),
            targets=self._targets,
            isolated=isolated,
            pings=pings,
        )
        self.completer = Completer(
            pool,
            self._recorded,
            may_gather=lambda: not self._stopping and 2 * self._in_flight < self._concurrency,
            pings=pings,
            figures=self.figures,
        )
        self.claimer = Claimer(
            pool,
            pool.clock,
            worker_id=self.worker_id,
            queues=self._queues,
            lease_seconds=settings.worker_lease_seconds,
            poll_seconds=settings.poll_seconds,
            concurrency=self._concurrency,
            room=self._room,
            started=self._claimed,
            without=self._left_to_others,
            tenants=self._tenants,
        )
        self.leases = LeaseKeeper(
            pool.url,
            worker_id=self.worker_id,
            lease_seconds=settings.worker_lease_seconds,
            # A heartbeat also brings cancelled runs; without a notifier it must come often enough for that.
            interval=settings.heartbeat_interval if notifier else min(settings.heartbeat_interval, CANCEL_SECONDS),
            pgbouncer=settings.pgbouncer,
            schema=pool.schema,
            join=self._join,
            lost=lambda claim_id: self.executor.stop_claim(claim_id, StopReason.LEASE_LOST),
            cancelled=lambda claim_id, ordinal: self.executor.stop_run(claim_id, ordinal, StopReason.CANCELLED),
            look=blocking.look,
        )
        if notifier is not None:
            notifier.listen("duly_work", self._heard_work)
            notifier.listen("duly_cancel", self._heard_cancel)

    async def _join(self, pool: Pool) -> None:
        self._reported_hanging = hanging = self.executor.threads.hanging
        await cluster.join(
            pool,
            node_id=self.worker_id,
            kind="worker",
            name=self.node or "",
            version=self._version,
            lease_seconds=self._settings.worker_lease_seconds,
            info={
                "queues": list(self._queues),
                **({"weights": self._queues} if len(set(self._queues.values())) > 1 else {}),
                **({"tenants": self._tenants} if self._tenants else {}),
                "concurrency": self._concurrency,
                "tasks": sorted(self._tasks),
                "targets": sorted(self._targets),
                # Which commands: all, none, or the programs of a list.
                "commands": self._settings.allow_commands,
                **({"app": dict(self._app)} if self._app is not None else {}),
                **({"hanging_threads": hanging, "threads": self.executor.threads.limit} if hanging else {}),
            },
        )
        await self._offering.offer(pool)

    async def start(self) -> None:
        await self._join(self._pool)
        await self._offering.start()
        await self.leases.start()
        await self._progress.start()
        if self._run_logs is not None:
            await self._run_logs.start()
        await self.completer.start()
        if self._wear is not None:
            self._wear.start(lambda: self._in_flight > 0)
        await self.claimer.start()

    async def stop(self, grace: float | None = None) -> None:
        """Stops claiming, lets handlers finish within the grace, returns the other runs to the queue, signs off."""
        grace = self._settings.shutdown_grace_seconds if grace is None else grace
        self._stopping = True
        if self._wear is not None:
            self._wear.stop()
        await self.claimer.stop()
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
        except TimeoutError:
            log.warning("%d handlers did not finish in time: their runs go back to the queue", len(self.executor))
        self.executor.stop_all(StopReason.SHUTDOWN)
        try:
            # Writing the last outcomes must not hang on an unreachable database: the leases end anyway.
            async with asyncio.timeout(min(WRITE_SECONDS, self._settings.worker_lease_seconds)):
                await self._idle.wait()
        except TimeoutError:
            log.error("%d outcomes could not be written; rescue will take those runs back", self._in_flight)
        await asyncio.gather(self.completer.stop(), self._progress.stop(), self.leases.stop(), self._offering.stop())
        if self._run_logs is not None:
            await self._run_logs.stop()
        self.executor.close()
        if self._reporting is not None:
            self._reporting.cancel()
        for target in self._targets.values():
            await target.close()
        if self._isolated is not None:
            await self._isolated.close()
        await self._transactions.close()
        leaving = asyncio.create_task(self._leave())
        if self._pings is not None:
            await self._pings.close()
        await leaving

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await cluster.leave(self._pool, node_id=self.worker_id)
        except (DulyError, TimeoutError) as error:
            log.warning("could not say goodbye: %s", str(error) or "the store did not answer")

    def stop_now(self) -> None:
        """Stops every running handler now and returns its run to the queue."""
        self.executor.stop_all(StopReason.SHUTDOWN)

    # Probes, from other threads.

    def not_alive(self) -> str | None:
        """What is wrong, if this worker should be started anew."""
        return None if self.leases.running else "the thread that extends the worker's leases has ended"

    def not_ready(self) -> str | None:
        """What is wrong, if this worker claims no runs at the moment."""
        if self._stopping:
            return "the worker is stopping"
        now = time.monotonic()
        if (silent := now - self.leases.beat_at) > self._settings.worker_lease_seconds:
            return f"the worker's last heartbeat was answered {silent:.0f} s ago: does PostgreSQL answer?"
        if (silent := now - self.claimer.looked_at) > max(QUIET_SECONDS, 3 * self.claimer.interval):
            return f"the worker's last claim was answered {silent:.0f} s ago: does PostgreSQL answer?"
        return None

    # The host of executions: the calls that handlers make through their context.

    def transaction(self, execution: Execution) -> AbstractAsyncContextManager[Connection]:
        return self._transactions.open(execution)

    def progress(self, run: ClaimedRun, fraction: float, note: str) -> None:
        self._progress.say(run, fraction, note)

    def logged(self, execution: Execution, level: str, source: str, text: str) -> None:
        """Not kept: `run_logs` replaces this."""

    def printed(self, execution: Execution, stream: str, text: str) -> None:
        """Not kept: `run_logs` replaces this."""

    def log_ended(self, execution: Execution) -> None:
        if self._run_logs is not None:
            self._run_logs.over(execution)

    def holds(self, run: ClaimedRun) -> bool:
        return self.leases.holds(run.claim_id)

    # Room for more runs

    def _room(self) -> int:
        """Number of runs that may be claimed: of any task, or of tasks that need no thread (`_left_to_others`)."""
        room, threads = self._spare_concurrency(), self.executor.threads
        if self._wear is not None and self._wear.heavy:
            room = self._wear.room(room)
        if threads.overdue and not self._no_threads():
            # Every run that is claimed now may need a thread.
            return min(room - threads.overdue, threads.free)
        return room

    def _left_to_others(self) -> list[str] | None:
        names = self._offers.elsewhere()
        if self._no_threads():
            names += self._thread_tasks
        return names or None

    def _no_threads(self) -> bool:
        threads = self.executor.threads
        return threads.crowded or (threads.overdue > 0 and self._spare_concurrency() <= threads.overdue)

    def _spare_concurrency(self) -> int:
        return self._concurrency - self._in_flight + self.completer.apart

    def _threads_changed(self) -> None:
        self.claimer.widened()
        if self._wear is not None:
            self._wear.threads_changed(self.executor.threads.hanging, self.executor.threads.limit)
        if self.executor.threads.hanging != self._reported_hanging and self._reporting is None and not self._stopping:
            self._reporting = asyncio.get_running_loop().create_task(self._report_hanging())

    async def _report_hanging(self) -> None:
        """Reports hanging threads to the store, so that `duly status` shows them."""
        try:
            while self.executor.threads.hanging != self._reported_hanging and not self._stopping:
                await asyncio.sleep(REPORT_SECONDS)  # several threads may hang at once
                try:
                    await self._join(self._pool)
                except StoreUnavailable:
                    self._reported_hanging = -1
        finally:
            self._reporting = None

    # Messages between the parts

    def _claimed(self, claim: Claim, sent: float) -> None:
        assert claim.claim_id is not None
        if not self.leases.hold(claim.claim_id, sent):
            self.figures.claim_conflicts += 1
            log.warning("a claim was answered too late: its %d runs are left to rescue", len(claim.runs))
            return
        self._in_flight += len(claim.runs)
        self._idle.clear()
        if self._wear is not None:
            self._wear.claimed(len(claim.runs))
        self.completer.hold(claim.claim_id, len(claim.runs))
        traced = None
        if (spans := tracing()) is not None:
            self.executor.spans = spans
            traced = spans.claimed(len(claim.runs), began_ns=time.time_ns() - int((time.monotonic() - sent) * 1e9))
        for run in claim.runs:
            if run.flags & _CANCELLED:
                text = error_text("Cancelled", "the job was cancelled before this attempt began")
                self._ended(run, Buried(run, None, self._pool.clock.now_us(), text, status="cancelled"))
            else:
                self.executor.start(run, traced)
        if traced is not None:
            traced.show()

    def _ended(self, run: ClaimedRun, outcome: Outcome | None) -> None:
        if outcome is None:
            self.completer.forget(run)
        else:
            self.completer.add(outcome)
        if self._observer is not None:
            self._observer(run, outcome)

    def _recorded(self, count: int) -> None:
        self._in_flight -= count
        for claim_id in self.completer.take_emptied():
            self.leases.release(claim_id)
        if self._in_flight == 0:
            self._idle.set()
        self.claimer.room_freed()

    def _heard_work(self, queue: str | None) -> None:
        if queue is None or queue in self._queues:
            self.claimer.wake()

    def _heard_cancel(self, worker_id: str | None) -> None:
        if worker_id is None or worker_id == str(self.worker_id):
            self.leases.poke()
