"""The composition root: wires the parts of a node together and runs them until a signal ends it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from duly.cluster.coordinator import Term
from duly.cluster.making import make_coordinator
from duly.config import Settings
from duly.figures import Figures
from duly.maintenance.deadman import Deadman
from duly.maintenance.guardian import Guardian
from duly.maintenance.leader import LeaderService
from duly.maintenance.monitor_watch import MonitorWatch
from duly.maintenance.orphans import Orphans
from duly.maintenance.partitions import Partitions
from duly.maintenance.pauses import Pauses
from duly.maintenance.rescuer import Rescuer
from duly.maintenance.sql_submits import SqlSubmits
from duly.maintenance.survey import Survey
from duly.maintenance.teller import Teller
from duly.maintenance.tidier import Tidier
from duly.maintenance.unparker import Unparker
from duly.maintenance.watcher import Watcher
from duly.maintenance.zone_keeper import ZoneKeeper
from duly.operations.offered import offered_defaults
from duly.operations.sql_submits import plan_sql_submit
from duly.scheduler.catch_up import CatchingUp
from duly.scheduler.firer import Firer
from duly.scheduler.governor import Governor
from duly.scheduler.loader import Loader
from duly.scheduler.near_future import NearFuture
from duly.service import Service
from duly.sizes import read_size
from duly.store.notifier import Notifier
from duly.store.pool import Pool
from duly.store.stores import shard_count
from duly.version import VERSION
from duly.vitals import Vitals
from duly.worker.handler.output import listening
from duly.worker.handler.task import Task
from duly.worker.processes.children import Children, check_isolated
from duly.worker.run_logs import RunLogs
from duly.worker.targets.making import make_pings, make_targets
from duly.worker.wear import Limits, Wear
from duly.worker.worker import Observer, Worker

# The node that leads this shard also does the upkeep.
UPKEEP_SHARD = 0


def duly_version() -> str:
    return VERSION


def node_name() -> str:
    """A name for people. Nodes are told apart by their ids."""
    return f"{socket.gethostname()}:{os.getpid()}"


def make_notifier(pool: Pool, settings: Settings) -> Notifier | None:
    """The notifier; None if notifications are off or only a pooler is configured: LISTEN needs a direct connection."""
    if not settings.notifications or (settings.pgbouncer and settings.direct_url is None):
        return None
    # A node must notice a dead connection before an announced occurrence counts as missed.
    return Notifier(
        settings.direct_url or pool.url, interval=min(Notifier.interval, silent_seconds(settings)), schema=pool.schema
    )


def silent_seconds(settings: Settings) -> float:
    """Seconds between two looks of a scheduler without announcements: a third of the misfire grace, at least 0.5."""
    return max(0.5, settings.misfire_grace_seconds / 3)


class SchedulerNode:
    """Coordinator, loader, firer and upkeep. The coordinator pushes terms, and the node passes them on."""

    def __init__(self, pool: Pool, settings: Settings, *, figures: Figures | None = None) -> None:
        self.node_id = uuid4()
        self.figures = figures = figures or Figures("scheduler")
        figures.shards_owned = lambda: len(self.coordinator.terms)
        self._stopping = False
        self.future = NearFuture(pool.clock, horizon_us=int(settings.horizon_seconds * 1e6))
        grace = timedelta(seconds=settings.misfire_grace_seconds)
        governor = Governor(pool.clock, settings.catch_up_per_second)
        self.catching_up = CatchingUp(pool, governor, figures=figures)
        self.firer = Firer(
            pool,
            self.future,
            misfire_grace=grace,
            ahead=timedelta(seconds=settings.fire_ahead_seconds),
            catch_up_window_seconds=settings.catch_up_window_seconds,
            governor=governor,
            deferred=self.catching_up.wake,
            doubted=lambda shard: self.loader.doubt(shard),
            figures=figures,
        )
        self.notifier = make_notifier(pool, settings)
        self.loader = Loader(
            pool,
            self.future,
            interval=settings.reread_seconds,
            changed=self.firer.wake,
            waiting=self.firer.backlog.waiting,
            hearing=lambda: self.notifier is not None and self.notifier.hearing,
            silent_seconds=silent_seconds(settings),
        )
        sql_submits = SqlSubmits(
            pool,
            plan=lambda job: plan_sql_submit(job, settings),
            notified=self.notifier is not None,
            tenant_max_jobs=settings.tenant_max_jobs,
            payload_max_bytes=settings.payload_max_bytes,
        )
        self.upkeep: list[LeaderService] = [
            Rescuer(pool, figures=figures),
            Partitions(pool),
            Unparker(pool),
            Pauses(pool),
            Orphans(pool),
            Tidier(
                pool,
                ledger_retention_seconds=settings.ledger_retention_seconds,
                audit_retention_seconds=settings.audit_retention_days * 86400.0,
                run_log_retention_seconds=settings.run_log_retention_seconds,
            ),
            Guardian(pool, figures=figures),
            Survey(pool),
            Teller(pool, settings),
            Watcher(pool),
            sql_submits,
            zone_keeper := ZoneKeeper(pool),
            monitor_watch := MonitorWatch(pool, notified=self.notifier is not None),
        ]
        if settings.deadman_url is not None:
            self.upkeep.append(
                Deadman(
                    pool,
                    settings.deadman_url,
                    interval=settings.deadman_seconds,
                    late_seconds=settings.deadman_late_seconds,
                )
            )
        self.coordinator = make_coordinator(
            self, pool, settings, node_id=self.node_id, name=node_name(), version=duly_version()
        )
        if self.notifier is not None:
            self.notifier.listen("duly_due", self.loader.heard)
            self.notifier.listen("duly_submitted", lambda _: sql_submits.wake())
            self.notifier.listen("duly_monitors", lambda _: monitor_watch.wake())
            self.notifier.listen("duly_zones", lambda _: zone_keeper.wake())
            self.notifier.listen("duly_shards", lambda _: self.coordinator.wake())
        self._services: list[Service] = [*self.upkeep, self.firer, self.catching_up, self.loader, self.coordinator]
        if self.notifier is not None:
            self._services.insert(0, self.notifier)

    def not_alive(self) -> str | None:
        """What is wrong, if this node should be started anew; its loop is watched elsewhere."""
        return None

    def not_ready(self) -> str | None:
        """What is wrong, if this node leads nothing at the moment. Called from other threads."""
        return "the scheduler is stopping" if self._stopping else self.coordinator.not_ready()

    def term_began(self, term: Term) -> None:
        self.firer.lead(term)
        self.catching_up.lead(term)
        self.loader.lead(term.shard)
        if term.shard == UPKEEP_SHARD:
            for service in self.upkeep:
                service.lead(True)

    def term_ended(self, term: Term) -> None:
        self.firer.drop(term.shard)
        self.catching_up.drop(term.shard)
        self.loader.drop(term.shard)
        if term.shard == UPKEEP_SHARD:
            for service in self.upkeep:
                service.lead(False)

    async def start(self) -> None:
        try:
            for service in self._services:
                await service.start()
        except (Exception, asyncio.CancelledError):
            # The coordinator, which starts last, refuses: the others must not go on over a pool that is closed next.
            await asyncio.gather(*(service.stop() for service in self._services if service is not self.coordinator))
            raise

    async def stop(self) -> None:
        """Stops firing, lets the current fire end, then gives up the shards."""
        self._stopping = True
        await self.coordinator.stop()
        others = [service for service in self._services if service is not self.coordinator]
        await asyncio.gather(*(service.stop() for service in others))
        await self.coordinator.leave()


@asynccontextmanager
async def running_scheduler(
    pool: Pool, settings: Settings, *, vitals: Vitals | None = None
) -> AsyncIterator[SchedulerNode]:
    """A running scheduler. `vitals`: of this process, for its probes and metrics."""
    node = SchedulerNode(pool, settings, figures=None if vitals is None else vitals.figures)
    await node.start()
    if vitals is not None:
        vitals.started(alive=node.not_alive, ready=node.not_ready)
    try:
        yield node
    finally:
        await node.stop()


def wear_limits(settings: Settings) -> Limits:
    """When a process that runs handlers is replaced: a worker process, and each of its isolated children."""
    size = settings.worker_max_memory
    return Limits(settings.worker_max_runs, None if size is None else read_size(size))


@asynccontextmanager
async def running_worker(
    pool: Pool,
    tasks: Mapping[str, Task],
    settings: Settings,
    *,
    queues: Sequence[str] | Mapping[str, int] = ("default",),
    tenants: Sequence[str] = (),
    concurrency: int | None = None,
    observer: Observer | None = None,
    app: Mapping[str, Any] | None = None,
    worker_id: UUID | None = None,
    wear: Wear | None = None,
    vitals: Vitals | None = None,
) -> AsyncIterator[Worker]:
    """A running worker. `queues` as a mapping gives each queue a weight: its share of a busy worker.

    `tenants`: the tenants whose runs it takes; empty: all tenants. `app`: the application and deploy that it is of.
    `worker_id`: a new one, chosen by its supervisor. `wear`: of this process, for its supervisor. `vitals`: of this
    process, for its probes and metrics.
    """
    notifier = make_notifier(pool, settings)
    worker = Worker(
        pool,
        tasks,
        settings,
        name=node_name(),
        version=duly_version(),
        queues=queues,
        tenants=tenants,
        concurrency=concurrency,
        notifier=notifier,
        observer=observer,
        app=app,
        isolated=Children(settings.process_slots, wear_limits(settings)) if check_isolated(tasks) else None,
        targets=await make_targets(settings, pool, version=duly_version()),
        worker_id=worker_id,
        wear=wear,
        defaults=offered_defaults(tasks),
        pings=make_pings(settings, name=node_name(), version=duly_version()),
        figures=None if vitals is None else vitals.figures,
        shards=await shard_count(pool),
        run_logs=None
        if settings.run_logs == "off"
        else RunLogs(pool, pool.clock, mode=settings.run_logs, bytes_per_run=settings.run_log_bytes),
    )
    async with AsyncExitStack() as stack:
        if notifier is not None:
            await notifier.start()
            stack.push_async_callback(notifier.stop)
        if settings.run_logs != "off":
            stack.enter_context(listening())
        await worker.start()
        stack.push_async_callback(worker.stop)
        if vitals is not None:
            vitals.started(alive=worker.not_alive, ready=worker.not_ready)
        yield worker
