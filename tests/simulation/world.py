"""One simulation: real schedulers and workers, a model in place of their store, and faults, all from one seed."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

import duly.clock
import duly.cluster.member
import duly.node
import duly.scheduler.loader
import duly.scheduler.planner
import duly.worker.claimer
import duly.worker.drivers
import duly.worker.execution
import duly.worker.executor
import duly.worker.leases
import duly.worker.worker
from duly.config import Settings
from duly.errors import DulyError, Permanent, Snooze
from duly.maintenance.rescuer import Rescuer
from duly.model import Policy
from duly.node import SchedulerNode
from duly.worker.handler.context import Context
from duly.worker.handler.task import Task
from duly.worker.leases import LeaseKeeper
from duly.worker.worker import Worker
from simulation.checker import Broken, Checker, Expected
from simulation.link import COMMAND_TIMEOUT, Request, Server, SimPool, Weather
from simulation.loop import BEGINNING, NodeLoop, Timeline, VirtualDatetime, VirtualTime
from simulation.model import Job, Model

SHARDS = 3
LEADER_LEASE = 12.0
WORKER_LEASE = 15.0
#: Seconds in which faults happen; jobs end at this time as well.
FAULTS_UNTIL = 60.0
#: Seconds after the last fault within which every occurrence must have its outcome: by then a hanging link is noticed,
#: leases have expired, and the last run of a line has had all its attempts.
SETTLED_WITHIN = 240.0

STATEMENTS = {
    "scheduler": [
        "cluster/other_schedulers", "cluster/join", "cluster/beat", "cluster/beat", "cluster/acquire",
        "cluster/acquire", "cluster/hand_over",
        "fires/load", "fires/due", "fires/on_time", "fires/on_time", "fires/fire", "fires/fire", "fires/release",
        "maintenance/lock_expired", "maintenance/rescue", "jobs/lock_available", "jobs/put_in_order", "commit",
    ],
    "worker": [
        "runs/claim", "runs/claim", "runs/claim", "runs/complete", "runs/complete", "runs/requeue", "runs/bury",
        "runs/expire", "runs/heartbeat", "runs/heartbeat", "jobs/lock_available", "jobs/put_in_order", "commit",
    ],
}  # fmt: skip

SETTINGS = Settings.model_construct(
    database_url="simulation",
    leader_lease_seconds=LEADER_LEASE,
    worker_lease_seconds=WORKER_LEASE,
    heartbeat_seconds=None,
    poll_seconds=6.0,
    reread_seconds=20.0,
    horizon_seconds=100.0,
    shutdown_grace_seconds=5.0,
    concurrency=6,
    shards=SHARDS,
)


class Notifier:
    """Passes on the notifications that the simulation delivers, which are not all of them."""

    hearing = True

    def __init__(self) -> None:
        self.listeners: dict[str, list[Callable[[str | None], None]]] = {}

    def listen(self, channel: str, listener: Callable[[str | None], None]) -> None:
        self.listeners.setdefault(channel, []).append(listener)

    def heard(self, channel: str, payload: str) -> None:
        for listener in self.listeners.get(channel, ()):
            listener(payload)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass


class SimLeaseKeeper(LeaseKeeper):
    """The real lease keeper, on a simulated thread."""

    def _begin(self) -> None:
        main: Any = self._main
        self._ended = main.create_future()
        main.node.loops[1].begin(self._beat_and_tell)

    async def _beat_and_tell(self) -> None:
        await self._beat_until_stopped()
        self._main.call_soon_threadsafe(lambda: self._ended.done() or self._ended.set_result(None))

    async def stop(self) -> None:
        self._stopping = True
        self.poke()
        await asyncio.wait([self._ended], timeout=10)


class _Connecting:
    """Stands in for `Pool` where the heartbeat's thread opens a pool of its own."""

    @staticmethod
    async def connect(_url: str, *, command_timeout: float, **_options: Any) -> SimPool:
        loop: Any = asyncio.get_running_loop()
        node: SimNode = loop.node
        return await node.connect(loop, command_timeout)


class SimNode:
    """One process after another under one name: when one ends, a supervisor starts the next."""

    def __init__(self, world: World, name: str, kind: str) -> None:
        self.world = world
        self.name = name
        self.kind = kind
        self.loops: list[NodeLoop] = []
        self.cut = False
        #: A statement, and the fault that strikes the node between that statement's effect and its answer.
        self.trap: tuple[str, str] | None = None
        self.life = 0
        self.stopping = self.started = False
        self.scheduler: SchedulerNode | None = None
        self.worker: Worker | None = None
        self.notifier = Notifier()

    @property
    def up(self) -> bool:
        return bool(self.loops) and not self.loops[0].dead

    @property
    def healthy(self) -> bool:
        """Whether the node is alive and has run all its callbacks: a step not taken by now is not intended."""
        return self.up and not any(loop.behind for loop in self.loops)

    def begin(self) -> None:
        dice = self.world.dice
        self.life += 1
        self.stopping = self.started = False
        self.scheduler = self.worker = None
        self.notifier = Notifier()
        # The machine's wall clock may be far off; its monotonic one a little fast or slow.
        origin, speed = dice.uniform(-300, 300), dice.uniform(0.998, 1.002)
        self.loops = [
            NodeLoop(  # type: ignore[abstract]
                self.world.timeline, f"{self.name}.{self.life}{thread}", origin=origin, speed=speed
            )
            for thread in ("", "♥")
        ]
        for loop in self.loops:
            loop.node = self  # type: ignore[attr-defined]
            self.world.loops.append(loop)
        self.loops[0].begin(self._live)
        self.world.say(f"{self.name}.{self.life} begins")

    async def connect(self, loop: NodeLoop, timeout: float) -> SimPool:
        pool = SimPool(loop, self.world.server, self, timeout=timeout)
        for _ in range(3):  # as the real pool does
            await pool.measure_clock()
        return pool

    async def _live(self) -> None:
        life = self.life
        try:
            pool: Any = await self.connect(self.loops[0], COMMAND_TIMEOUT)
            if self.kind == "scheduler":
                node = SchedulerNode(pool, self.world.settings)
                # The other upkeep services are not simulated: the guardian would repair what must not break.
                others = [service for service in node.upkeep if not isinstance(service, Rescuer)]
                node.upkeep = [service for service in node.upkeep if isinstance(service, Rescuer)]
                node._services = [service for service in node._services if service not in others]
                # Fewer passes that find nothing to do, because every step costs time.
                node.firer.interval = 5.0
                node.upkeep[0].interval = 2.0
                self.scheduler = node
                self.world.nodes_by_id[node.node_id] = self
                await node.start()
            else:
                worker = Worker(
                    pool, self.world.tasks, self.world.settings, name=self.name, version="0",
                    notifier=self.notifier, observer=None,  # type: ignore[arg-type]
                )  # fmt: skip
                self.worker = worker
                self.world.nodes_by_id[worker.worker_id] = self
                await worker.start()
            self.started = True
        except DulyError as error:
            self.world.say(f"{self.name}.{life} cannot begin: {error}")
            self.end(self.world.dice.uniform(0.5, 3.0))

    def end(self, pause: float) -> None:
        """Ends the process at once, between two steps. After a pause the next process begins."""
        for loop in self.loops:
            loop.kill()
        self.world.timeline.after(pause, self.begin)

    def freeze(self, seconds: float, *, all_of_it: bool = True) -> None:
        loops = self.loops if all_of_it else self.loops[:1]
        for loop in loops:
            loop.freeze()

        def thaw() -> None:
            self.world.say(f"{self.name} goes on")
            for loop in loops:
                loop.thaw()

        self.world.timeline.after(seconds, thaw)

    def stop(self) -> None:
        """Stops the process in order, as SIGTERM does."""
        part: Any = self.scheduler or self.worker
        if part is not None and self.up and self.started and not self.stopping:
            self.stopping = True
            self.loops[0].begin(lambda: self._stop(part))

    async def _stop(self, part: Any) -> None:
        try:
            await part.stop()
        except DulyError as error:
            self.world.say(f"{self.name} could not stop in order: {error}")
        self.world.say(f"{self.name}.{self.life} has stopped")
        self.end(self.world.dice.uniform(0.5, 5.0))


@dataclass
class Found:
    """The result of a simulation. `broken`: the broken promise, or None."""

    seed: int
    broken: str | None
    steps: int
    statements: int
    outcomes: int
    ended_at: float
    trace: list[str] = field(default_factory=list)
    faults: int = 0

    @property
    def fingerprint(self) -> tuple[Any, ...]:
        return self.broken, self.steps, self.statements, self.outcomes, self.ended_at


class World:
    def __init__(self, seed: int, *, tracing: bool = False, model: type[Model] = Model) -> None:
        self.seed = seed
        self.dice = Random(seed)
        self.trace: list[str] | None = [] if tracing else None
        self.timeline = Timeline(self.dice)
        self.model = model(SHARDS, lambda: self.timeline.database_now, Random(seed + 1))
        self.weather = Weather()
        self.server = Server(self.timeline, self.model, self.weather, self._executed)
        self.checker = Checker(lambda: self.timeline.database_now, self._believes_to_lead, self._relies_on)
        self.nodes_by_id: dict[UUID, SimNode] = {}
        self.loops: list[NodeLoop] = []
        self.executing: dict[UUID, list[tuple[SimNode, NodeLoop, UUID]]] = {}
        self.faults = 0
        self.over = False
        self.settings = SETTINGS
        if self.dice.random() < 0.3:
            self.settings = SETTINGS.model_copy(update={"catch_up_per_second": self.dice.choice([0.3, 1.0, 4.0])})
        if self.dice.random() < 0.3:
            self.settings = self.settings.model_copy(
                update={"misfire_grace_seconds": self.dice.choice([0.0, 2.0, 30.0])}
            )
        if self.dice.random() < 0.5:
            self.settings = self.settings.model_copy(update={"fire_ahead_seconds": self.dice.choice([0.0, 3.0])})
        self.tasks = {"sim": Task("sim", self._handler())}
        schedulers, workers = self.dice.choice([(2, 2), (2, 2), (3, 2), (2, 3)])
        self.schedulers = [SimNode(self, f"scheduler{n}", "scheduler") for n in range(schedulers)]
        self.workers = [SimNode(self, f"worker{n}", "worker") for n in range(workers)]
        self.nodes = self.schedulers + self.workers

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.timeline.now:9.3f}  {text}")

    # Decisions of the seed.

    def run(self) -> Found:
        self._prepare()
        broken = None
        try:
            self.timeline.run(FAULTS_UNTIL + SETTLED_WITHIN, self._done)
            self.checker.check_all()
            if self.timeline.errors:
                raise Broken("unhandled errors: " + "; ".join(self.timeline.errors))
        except Broken as error:
            broken = str(error)
            self.say(f"BROKEN: {broken}")
        found = Found(
            self.seed, broken, self.timeline.steps, self.server.executed, len(self.model.history), self.timeline.now,
            self.trace or [], self.faults,
        )  # fmt: skip
        for loop in self.loops:
            loop.kill()
        self.timeline.bury()
        return found

    def _done(self) -> bool:
        return self.over and self.checker.settled

    def _prepare(self) -> None:
        dice, timeline = self.dice, self.timeline
        self.weather.slow, self.weather.refused = dice.choice([0, 0.02, 0.1]), dice.choice([0, 0.02, 0.08])
        self.weather.lost, self.weather.hung = dice.choice([0, 0.03, 0.1]), dice.choice([0, 0.005, 0.02])
        for _ in range(dice.randint(2, 5)):
            timeline.at(dice.choice([0.0, dice.uniform(0, 40)]), self._submit)
        for node in self.nodes:
            timeline.at(dice.uniform(0, 2), node.begin)
        for _ in range(dice.randint(0, 9)):
            timeline.at(dice.uniform(3, FAULTS_UNTIL), self._fault)
        timeline.at(FAULTS_UNTIL, self._calm)

    def _submit(self) -> None:
        dice, now = self.dice, self.timeline.database_now
        number = len(self.model.jobs) + 1
        job_id = UUID(int=(0x7000 << 64) | (number * 16 * SHARDS + dice.randrange(SHARDS)))
        period = timedelta(seconds=dice.choice([3, 5, 8, 13, 20]))
        policy = Policy(
            overlap=dice.choice(["skip", "queue", "parallel"]),
            missed_window=dice.choice(["SKIP", "RUN_ONCE", "RUN_ALL"]),
            max_queued=dice.choice([2, 100]),
            max_missed=dice.choice([2, 100]),
            max_retries=dice.choice([1, 3]),
            retry_backoff=dice.choice(["immediate", "linear"]),
            retry_delay_seconds=3,
            timeout_seconds=dice.choice([4, 300]),
            start_within_seconds=dice.choice([None, None, None, 6]),
        )
        # Never at an occurrence, so that it does not matter whether the end is included.
        end_at = BEGINNING + timedelta(seconds=FAULTS_UNTIL, microseconds=dice.randrange(500_000))
        expected = Expected(
            job_id, now, period, end_at, policy.overlap, policy.max_retries, policy.start_within_seconds
        )
        self.checker.add(expected)
        self.model.put(
            Job(
                job_id=job_id, shard=job_id.int % SHARDS, kind="interval",
                schedule=f"every {int(period.total_seconds())}s", start_at=None, end_at=end_at,
                policy=policy.to_stored(), created_at=now, next_run_at=now + period,
            )
        )  # fmt: skip
        self.say(f"submitted {str(job_id)[-4:]}: every {period}, {policy.overlap}, {policy.missed_window}")
        self._spread_the_word()

    def _fault(self) -> None:
        dice = self.dice
        self.faults += 1
        node = dice.choice(self.nodes)
        what = dice.choice(["kill", "freeze", "block", "away", "cut", "stop", "storm", "trap", "trap", "trap"])
        if what == "trap":
            node.trap = dice.choice(STATEMENTS[node.kind]), dice.choice(["kill", "freeze", "cut", "late and cut"])
            self.say(f"{node.name}: {node.trap[1]} at its next {node.trap[0]}")
        else:
            self._strike(node, what)

    def _strike(self, node: SimNode, what: str) -> None:
        dice = self.dice
        lease = LEADER_LEASE if node.kind == "scheduler" else WORKER_LEASE
        match what:
            case "kill" if node.up:
                self.say(f"{node.name} is killed")
                node.end(dice.uniform(0.5, 10))
            case "freeze" if node.up:
                seconds = dice.uniform(0.3, 3) * lease
                self.say(f"{node.name} is stopped for {seconds:.1f} s")
                node.freeze(seconds)
            case "block" if node.up:
                seconds = dice.uniform(0.3, 2) * lease
                self.say(f"{node.name}: the event loop is blocked for {seconds:.1f} s")
                node.freeze(seconds, all_of_it=False)
            case "away":
                seconds = dice.choice([0.5, 5, 20]) * dice.random()
                self.say(f"the database is away for {seconds:.1f} s")
                self.server.away = True
                for transaction in list(self.model.transactions):
                    self.model.roll_back(transaction)
                self.timeline.after(seconds, lambda: setattr(self.server, "away", False))
            case "cut":
                seconds = dice.uniform(0.3, 2.5) * lease
                self.say(f"{node.name} is cut off for {seconds:.1f} s")
                node.cut = True
                self.timeline.after(seconds, lambda: setattr(node, "cut", False))
            case "stop":
                self.say(f"{node.name} is told to stop")
                node.stop()
            case "storm":
                before = self.weather.slow, self.weather.lost
                self.weather.slow, self.weather.lost = 0.3, 0.2
                self.say("a storm begins")

                def ends() -> None:
                    if not self.over:
                        self.weather.slow, self.weather.lost = before

                self.timeline.after(dice.uniform(2, 15), ends)

    def _calm(self) -> None:
        self.say("the faults are over")
        self.over = True
        self.weather.clear()
        self.server.away = False
        for node in self.nodes:
            node.cut = False

    def _handler(self) -> Callable[..., Any]:
        async def sim(ctx: Context) -> None:
            await self._handle(ctx)

        return sim

    async def _handle(self, ctx: Context) -> None:
        dice, run = self.dice, ctx._execution.run
        loop: Any = asyncio.get_running_loop()
        node: SimNode = loop.node
        job = self.checker.jobs[run.job_id]
        executing = self.executing.setdefault(run.job_id, [])
        self.say(f"{node.name} executes {str(run.job_id)[-4:]}@{run.scheduled_at:%M:%S} (attempt {run.attempt})")
        if late := self.checker.begins((run.job_id, run.scheduled_at), run.attempt):
            raise_later(self, late)
        if job.overlap != "parallel":
            for other, thread, claim_id in executing:
                if claim_id != run.claim_id and not thread.dead and other.healthy:
                    raise_later(self, f"{run.job_id} is executed by {other.name} and {node.name} at once")
        mine = (node, loop, run.claim_id)
        manner = dice.random()
        if self.over:
            manner *= 0.75  # after the faults every handler succeeds
        if manner < 0.9:
            executing.append(mine)
        try:
            await asyncio.sleep(dice.choice([0, 0.01, 0.5, 3, dice.random() * 2 * WORKER_LEASE if manner < 0.3 else 0]))
            if manner < 0.75:
                return
            if manner < 0.85:
                raise ValueError("no")
            if manner < 0.87:
                raise Permanent("never")
            if manner < 0.9:
                raise Snooze(2)
            if manner < 0.94:
                # The handler goes on although it is cancelled.
                try:
                    await asyncio.sleep(WORKER_LEASE)
                except asyncio.CancelledError:
                    await asyncio.sleep(dice.uniform(0, 8))
            elif manner < 0.98:
                self.say(f"{node.name}: a handler blocks the event loop")
                node.freeze(dice.uniform(0.3, 2) * WORKER_LEASE, all_of_it=False)
                await asyncio.sleep(0)
            else:
                self.say(f"{node.name}: a handler ends the process")
                node.end(dice.uniform(0.5, 3))
                await asyncio.sleep(0)
        finally:
            if mine in executing:
                executing.remove(mine)

    # Callbacks of the server and the checker.

    def _executed(self, request: Request) -> None:
        name = request.name
        self._check(name)
        node: Any = request.pool.owner
        if node.trap is not None and node.trap[0] == name and not self.over:
            _, what = node.trap
            node.trap = None
            if what == "late and cut":
                request.back = self.dice.uniform(0, COMMAND_TIMEOUT)
                what = "cut"
            self._strike(node, what)

    def _check(self, name: str) -> None:
        if self.trace is not None and self.model.events:
            for event in self.model.events:
                self.trace.append(f"{self.timeline.now:9.3f}    {name}: {_told(event)}")
        if self.model.events:
            self.checker.check(self.model.events)
        self._spread_the_word()

    def _spread_the_word(self) -> None:
        if not self.model.notifications:
            return
        told, self.model.notifications[:] = list(self.model.notifications), []
        for channel, payload in told:
            for node in self.nodes:
                if node.up and channel in node.notifier.listeners and not node.cut:
                    if self.dice.random() < self.weather.lost:
                        continue
                    self.timeline.after(0.002, _hearing(node, node.loops[0], channel, payload))

    def _believes_to_lead(self, node_id: UUID, shard: int) -> bool:
        node = self.nodes_by_id[node_id]
        scheduler = node.scheduler
        return (
            scheduler is not None and scheduler.node_id == node_id and node.healthy
            and shard in scheduler.coordinator.terms
        )  # fmt: skip

    def _relies_on(self, worker_id: UUID, claim_id: UUID) -> bool:
        node = self.nodes_by_id[worker_id]
        worker = node.worker
        return (
            worker is not None and worker.worker_id == worker_id and node.healthy
            and claim_id in worker.leases._trusted_until
        )  # fmt: skip


def raise_later(world: World, text: str) -> None:
    """Records an error of the simulation. Raised within a handler, it would count as the handler's failure."""
    world.timeline.errors.append(text)


def _hearing(node: SimNode, loop: NodeLoop, channel: str, payload: str) -> Callable[[], None]:
    return lambda: None if loop.dead else void(loop.call_soon(node.notifier.heard, channel, payload))


def void(_: object) -> None:
    pass


def _told(event: tuple[Any, ...]) -> str:
    return " ".join(str(part) for part in event)


_current: World | None = None


def _uuid4() -> UUID:
    assert _current is not None
    return UUID(int=_current.dice.getrandbits(128), version=4)


def _same_order(running: Any) -> int:
    """A hash with which sets of runs have the same order in every process."""
    return hash((running.run.claim_id.int, running.run.ordinal))


@contextmanager
def simulated() -> Iterator[None]:
    """Gives the product's modules virtual time, and the simulation's pool, ids and notifications."""

    def notifier(*_: Any) -> Notifier:
        loop: Any = asyncio.get_running_loop()
        made: Notifier = loop.node.notifier
        return made

    patches: list[tuple[Any, str, Any]] = [
        (duly.clock, "time", VirtualTime),
        (duly.clock, "datetime", VirtualDatetime),
        (duly.cluster.member, "time", VirtualTime),
        (duly.scheduler.loader, "time", VirtualTime),
        (duly.scheduler.planner, "time", VirtualTime),
        (duly.worker.claimer, "time", VirtualTime),
        (duly.worker.drivers, "time", VirtualTime),
        (duly.worker.leases, "time", VirtualTime),
        (duly.worker.leases, "Pool", _Connecting),
        # Two frequent timers, made slower because every step costs time.
        (duly.worker.leases, "_WATCH", 0.1),
        (duly.worker.executor, "_WATCH_SECONDS", 2.0),
        (duly.worker.execution.Execution, "__hash__", _same_order),
        (duly.worker.worker, "LeaseKeeper", SimLeaseKeeper),
        (duly.worker.worker, "uuid4", _uuid4),
        (duly.node, "uuid4", _uuid4),
        (duly.node, "make_notifier", notifier),
        (duly.node, "duly_version", lambda: "0"),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    state, disabled = random.getstate(), logging.root.manager.disable
    for owner, name, value in patches:
        setattr(owner, name, value)
    logging.disable(logging.CRITICAL)
    # `simulate` collects the simulation's own garbage; older objects need not be examined again and again.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
        logging.disable(disabled)
        random.setstate(state)
        for owner, name, value in before:
            setattr(owner, name, value)


def simulate(seed: int, *, tracing: bool = False, model: type[Model] = Model) -> Found:
    """Simulates one seed. Call it inside `simulated()`."""
    global _current
    if seed % 20 == 0:
        gc.collect()
    random.seed(seed)
    _current = World(seed, tracing=tracing, model=model)
    try:
        return _current.run()
    finally:
        _current = None


def search(seeds: range, *, model: type[Model] = Model) -> tuple[Found | None, list[Found]]:
    """Simulates seeds until one breaks a promise. Returns that result, or None, and the list of all results."""
    everything = []
    with simulated():
        for seed in seeds:
            found = simulate(seed, model=model)
            everything.append(found)
            if found.broken is not None:
                return found, everything
    return None, everything
