"""The contract of the store's statements as a small state machine: the specification that the simulation explores.

One method per statement, named after its `.sql` file. A statement is atomic. A transaction of several statements holds
its locks from the statement that takes them until it ends; its writes take effect when it commits.
`test_conformance.py` runs the same random calls here and on PostgreSQL and compares every answer and every table, so
that the two cannot drift apart.

`events` lists the changes for the checker. A statement adds them where it writes the tables. They are never derived
from the tables, so a mutant of a statement cannot hide what it did.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from duly.model import to_micros

INFINITY = datetime.max.replace(tzinfo=UTC)
NOBODY = UUID(int=0)
_2000_US = to_micros(datetime(2000, 1, 1, tzinfo=UTC))
SERIAL = 8

Key = tuple[UUID, datetime]
Event = tuple[Any, ...]


class Row:
    """A row like the driver's record: its values are read by name or in order."""

    __slots__ = ("values",)

    def __init__(self, **values: Any) -> None:
        self.values = values

    def __getitem__(self, name: str | slice) -> Any:
        return tuple(self.values.values())[name] if isinstance(name, slice) else self.values[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values.values())

    def keys(self) -> Iterable[str]:
        return self.values.keys()


class Job(NamedTuple):
    job_id: UUID
    shard: int
    kind: str
    schedule: str
    start_at: datetime | None
    end_at: datetime | None
    policy: str | None
    created_at: datetime
    next_run_at: datetime | None
    last_run_at: datetime | None = None
    extra_at: datetime | None = None
    run_count: int = 0
    status: str = "active"
    queue: str = "default"
    priority: int = 5
    max_runs: int | None = None
    #: Changes with every new version of the row.
    version: int = 0


class Run(NamedTuple):
    job_id: UUID
    scheduled_at: datetime
    run_at: datetime
    fired_at: datetime
    epoch: int | None
    attempt: int
    flags: int
    state: str


class Held(NamedTuple):
    job_id: UUID
    scheduled_at: datetime
    fired_at: datetime
    epoch: int | None
    attempt: int
    flags: int


class Claim(NamedTuple):
    claim_id: UUID
    worker_id: UUID
    claimed_at: datetime
    lease_until: datetime
    held: tuple[Held, ...]
    released: frozenset[int] = frozenset()


class Ended(NamedTuple):
    status: str
    claim_id: UUID | None
    attempt: int
    flags: int
    number: int = 1


class CatchUp(NamedTuple):
    job_id: UUID
    last_at: datetime
    first_at: datetime
    number: int
    served_at: datetime
    shard: int
    epoch: int


class Node(NamedTuple):
    kind: str
    lease_until: datetime
    name: str
    joined_at: datetime
    info: Mapping[str, Any]


class Shard(NamedTuple):
    epoch: int = 0
    node_id: UUID | None = None


@dataclass(eq=False)
class Transaction:
    """A transaction of several statements. `broken`: the server has rolled it back."""

    jobs: set[UUID] = field(default_factory=set)
    claims: set[UUID] = field(default_factory=set)
    writes: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    waiters: list[Callable[[], None]] = field(default_factory=list)
    open: bool = True
    broken: bool = False


class LockedBy(Exception):
    """Raised by a statement that has to wait for this transaction."""

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction


class Refused(Exception):
    """An error of the database itself, such as a violated constraint."""


class Model:
    def __init__(self, shards: int, now: Callable[[], datetime], dice: Random) -> None:
        self._now = now
        self._dice = dice
        self.jobs: dict[UUID, Job] = {}
        self.runs: dict[Key, Run] = {}
        self.claims: dict[UUID, Claim] = {}
        self.history: dict[Key, Ended] = {}
        self.catch_ups: dict[Key, CatchUp] = {}
        self.nodes: dict[UUID, Node] = {}
        self.shards: list[Shard] = [Shard() for _ in range(shards)]
        self.events: list[Event] = []
        self.notifications: list[tuple[str, str]] = []
        self.transactions: list[Transaction] = []
        #: Runs that the database took where it had a choice; a claim here prefers them, too.
        self.taken_first: set[Key] = set()

    # Entry points.

    def execute(self, name: str, args: Sequence[Any]) -> list[Row]:
        """Executes one statement as its own transaction."""
        if self.transactions:
            self._wait_for_locks(name, args)
        rows: list[Row] = getattr(self, name.replace("/", "_"))(*args)
        return rows

    def execute_within(self, transaction: Transaction, name: str, args: Sequence[Any]) -> list[Row]:
        """Executes one statement of a transaction: it takes locks at once, or its writes take effect at the commit."""
        if transaction.broken:
            raise Refused("the transaction was given up")
        if name == "jobs/lock_available":
            free = sorted(job_id for job_id in set(args[0]) - self._locked_jobs() if job_id in self.jobs)
            transaction.jobs.update(free)
            rows = [Row(job_id=job_id) for job_id in free]
        elif name == "maintenance/lock_expired":
            found = self.expired_claims(*args)
            transaction.claims.update(found)
            rows = [Row(claim_id=claim_id) for claim_id in found]
        elif name == "maintenance/free_waiting":
            rows = [row for row in self.maintenance_free_waiting(*args) if row["job_id"] not in self._locked_jobs()]
            transaction.jobs.update(row["job_id"] for row in rows)
        else:
            self._wait_for_locks(name, args, transaction)
            saved = self._saved()
            try:
                rows = getattr(self, name.replace("/", "_"))(*args)
            finally:
                self._restore(saved)
            transaction.writes.append((name, tuple(args)))
        if transaction not in self.transactions and (transaction.jobs or transaction.claims):
            self.transactions.append(transaction)
        return rows

    def commit(self, transaction: Transaction) -> None:
        if transaction.broken:
            raise Refused("the transaction was given up")
        for name, args in transaction.writes:
            getattr(self, name.replace("/", "_"))(*args)
        self._end(transaction)

    def roll_back(self, transaction: Transaction) -> None:
        if transaction.open:
            transaction.broken = True
            self._end(transaction)

    def _end(self, transaction: Transaction) -> None:
        transaction.open = False
        if transaction in self.transactions:
            self.transactions.remove(transaction)
        waiters, transaction.waiters = transaction.waiters, []
        for waiter in waiters:
            waiter()

    def _saved(self) -> tuple[Any, ...]:
        tables: tuple[dict[Any, Any], ...] = (
            self.jobs,
            self.runs,
            self.claims,
            self.history,
            self.catch_ups,
            self.nodes,
        )
        return (
            *[dict(table) for table in tables],
            list(self.shards),
            len(self.events),
            len(self.notifications),
            self._dice.getstate(),
        )

    def _restore(self, saved: tuple[Any, ...]) -> None:
        (
            self.jobs,
            self.runs,
            self.claims,
            self.history,
            self.catch_ups,
            self.nodes,
            self.shards,
            events,
            told,
            dice,
        ) = saved
        del self.events[events:], self.notifications[told:]
        self._dice.setstate(dice)

    # Locks.

    _NAMES_CLAIMS = frozenset({"runs/complete", "runs/requeue", "runs/bury", "runs/expire"})

    def _locked_jobs(self) -> set[UUID]:
        return set().union(*(one.jobs for one in self.transactions))

    def _wait_for_locks(self, name: str, args: Sequence[Any], mine: Transaction | None = None) -> None:
        if name in self._NAMES_CLAIMS:
            self._wait_for(mine, claims=[*args[0], *(args[7] if name == "runs/complete" else ())])
        elif name == "runs/heartbeat":
            self._wait_for(mine, claims=args[2])

    def _wait_for(self, mine: Transaction | None, *, claims: Iterable[UUID]) -> None:
        for other in self.transactions:
            if other is not mine and not other.claims.isdisjoint(claims):
                raise LockedBy(other)

    # Changes of rows, with their events.

    def _set_job(self, job: Job, **changes: Any) -> None:
        self.jobs[job.job_id] = job._replace(version=job.version + 1, **changes)

    def _enqueue(self, run: Run, *, was: UUID | None) -> None:
        key = run.job_id, run.scheduled_at
        if key in self.runs:
            raise Refused(f"duplicate key in duly.runs: {key}")
        self.runs[key] = run
        self.events.append(("queued", key, was, run.state, run.attempt))

    def _record(self, key: Key, ended: Ended, *, last: datetime | None = None) -> bool:
        if key in self.history:
            return False
        self.history[key] = ended
        self.events.append(("ended", key, ended, last))
        return True

    def _tell(self, channel: str, payload: str) -> None:
        self.notifications.append((channel, payload))

    def put(self, job: Job) -> None:
        self.jobs[job.job_id] = job
        assert job.next_run_at is not None
        self._tell("duly_due", f"{job.shard}:{job.job_id}:{to_micros(job.next_run_at)}")

    # Nodes and shards.

    def cluster_join(self, node_id: UUID, kind: str, name: str, _version: str, lease: float, info: str) -> list[Row]:
        now = self._now()
        joined_at = self.nodes[node_id].joined_at if node_id in self.nodes else now
        self.nodes[node_id] = Node(kind, now + timedelta(seconds=lease), name, joined_at, json.loads(info))
        return []

    def cluster_other_schedulers(self, node_id: UUID) -> list[Row]:
        now = self._now()
        others = sorted(
            (node.joined_at, one)
            for one, node in self.nodes.items()
            if one != node_id and node.kind == "scheduler" and node.lease_until > now and "coordinator" in node.info
        )
        return [
            Row(name=node.name, coordinator=node.info["coordinator"], registry_path=node.info.get("registry_path"))
            for node in (self.nodes[one] for _, one in others)
        ]

    def cluster_offer_tasks(self, names: Sequence[str], *_: object) -> list[Row]:
        return [Row(name=name) for name in names]

    def cluster_leave(self, node_id: UUID) -> list[Row]:
        if node_id in self.nodes:
            self.nodes[node_id] = self.nodes[node_id]._replace(lease_until=self._now())
        mine = [number for number, shard in enumerate(self.shards) if shard.node_id == node_id]
        return self._free(mine)

    def _free(self, shards: Sequence[int]) -> list[Row]:
        for number in shards:
            self.shards[number] = self.shards[number]._replace(node_id=None)
        if shards:
            self._tell("duly_shards", "")
        return [Row(freed=len(shards))]

    def cluster_beat(self, node_id: UUID, lease: float) -> list[Row]:
        now = self._now()
        if node_id not in self.nodes:
            return []
        self.nodes[node_id] = self.nodes[node_id]._replace(lease_until=now + timedelta(seconds=lease))
        alive = [one for one, node in self.nodes.items() if node.kind == "scheduler" and node.lease_until > now]
        others = [self.nodes[one].lease_until for one in alive if one != node_id]
        return [
            Row(
                now=now,
                nodes=sorted(alive),
                leaders=[shard.node_id or NOBODY for shard in self.shards],
                epochs=[shard.epoch for shard in self.shards],
                expires_in=(min(others) - now).total_seconds() if others else None,
            )
        ]

    def lease_stands(self, node_id: UUID | None) -> bool:
        return node_id in self.nodes and self.nodes[node_id].lease_until > self._now()

    def cluster_acquire(self, node_id: UUID, shards: Sequence[int], epochs: Sequence[int], elected: bool) -> list[Row]:
        won = []
        for number, epoch in zip(shards, epochs, strict=True):
            shard = self.shards[number]
            free = elected or shard.node_id is None or shard.node_id == node_id or not self.lease_stands(shard.node_id)
            if shard.epoch == epoch and free and self.lease_stands(node_id):
                self.shards[number] = Shard(epoch + 1, node_id)
                self.events.append(("led", number, epoch + 1, node_id, shard.node_id))
                won.append(Row(shard=number, epoch=epoch + 1))
        return won

    def cluster_hand_over(self, node_id: UUID, shards: Sequence[int], epochs: Sequence[int]) -> list[Row]:
        wanted = zip(shards, epochs, strict=True)
        return self._free([number for number, epoch in wanted if self.shards[number] == Shard(epoch, node_id)])

    def leads(self, shard: int, epoch: int) -> bool:
        return self.shards[shard].epoch == epoch

    # Firing.

    def fires_load(
        self, shards: Sequence[int], after: Sequence[datetime], upto: Sequence[datetime], page: int
    ) -> list[Row]:
        rows = []
        for number, (shard, low, high) in enumerate(zip(shards, after, upto, strict=True), start=1):
            found = sorted(
                (job.next_run_at, job.job_id)
                for job in self.jobs.values()
                if job.shard == shard and job.next_run_at is not None and low < job.next_run_at <= high
            )
            if len(found) > page:
                found = [one for one in found if one[0] <= found[page - 1][0]]
            if found:
                ids = b"".join([job_id.bytes for _, job_id in found])
                dues = b"".join([(to_micros(due) - _2000_US).to_bytes(8, "big", signed=True) for due, _ in found])
                rows.append(Row(number=number, job_ids=ids, dues=dues))
        return rows

    def fires_due(self, job_ids: Sequence[UUID]) -> list[Row]:
        now = self._now()
        found = [self.jobs[job_id] for job_id in sorted(set(job_ids)) if job_id in self.jobs]
        return [
            Row(
                job_id=job.job_id, kind=job.kind, schedule=job.schedule, timezone="UTC", start_at=job.start_at,
                end_at=job.end_at, policy=job.policy, created_at=job.created_at, next_run_at=job.next_run_at,
                max_runs=job.max_runs, run_count=job.run_count, now=now,
                since=max(job.last_run_at or job.created_at, job.created_at), ctid=(0, job.version),
                version=job.version, busy=self._may_be_busy(job), shard=job.shard, trace=None, queue=None,
            )
            for job in found
            if job.next_run_at is not None
        ]  # fmt: skip

    def _may_be_busy(self, job: Job) -> bool:
        if (job.last_run_at is None and job.extra_at is None) or (job.policy and '"parallel"' in job.policy):
            return False
        return bool(self._runs_of(job.job_id)) or not self._last_have_ended(job)

    def _last_have_ended(self, job: Job) -> bool:
        return all(at is None or (job.job_id, at) in self.history for at in (job.last_run_at, job.extra_at))

    def fires_on_time(
        self, asked: Sequence[int], terms: Sequence[int], ctids: Sequence[tuple[int, int]], _versions: Sequence[int],
        job_ids: Sequence[UUID], expected: Sequence[datetime], next_run_at: Sequence[datetime | None],
        run_flags: Sequence[int], shards: Sequence[int], epochs: Sequence[int],
    ) -> list[Row]:  # fmt: skip
        now, moved = self._now(), []
        locked = self._locked_jobs()
        led = [shard for shard, epoch in zip(asked, terms, strict=True) if self.leads(shard, epoch)]
        for number, job_id in enumerate(job_ids):
            job, shard, epoch = self.jobs.get(job_id), shards[number], epochs[number]
            if (
                shard not in led
                or job_id in locked
                or not self.may_fire(job, shard, expected[number])
                or not self.is_seen(job, ctids[number])
            ):
                continue
            assert job is not None
            self.events.append(("moving", job_id, job.next_run_at, next_run_at[number], shard, epoch))
            run_at = max(now, expected[number])
            self._enqueue(Run(job_id, expected[number], run_at, now, epoch, 0, run_flags[number], "queued"), was=None)
            self.events.append(("moved", job_id))
            self._set_job(
                job, next_run_at=next_run_at[number], last_run_at=expected[number], extra_at=None,
                run_count=job.run_count + 1, status="ended" if next_run_at[number] is None else job.status,
            )  # fmt: skip
            moved.append(job_id)
        if moved:
            self._tell("duly_work", "default")
        return [Row(moved=moved or None, led=led or None, notified=0)]

    def is_seen(self, job: Job | None, ctid: tuple[int, int]) -> bool:
        """Whether the row is still the version that was looked at."""
        return job is not None and ctid == (0, job.version)

    def may_fire(self, job: Job | None, shard: int, expected: datetime) -> bool:
        return job is not None and job.shard == shard and job.next_run_at == expected

    def fires_fire(
        self, shard: int, epoch: int, job_ids: Sequence[UUID], expected: Sequence[datetime],
        next_run_at: Sequence[datetime | None], overlap: Sequence[str], max_queued: Sequence[int],
        run_job_ids: Sequence[UUID], run_scheduled_at: Sequence[datetime], run_flags: Sequence[int],
        run_number: Sequence[int], drop_job_ids: Sequence[UUID], drop_first: Sequence[datetime],
        drop_last: Sequence[datetime], drop_count: Sequence[int], drop_reason: Sequence[str],
        versions: Sequence[int],
    ) -> list[Row]:  # fmt: skip
        now, led = self._now(), self.leads(shard, epoch)
        runs: dict[UUID, list[tuple[datetime, int, int]]] = {}
        for job_id, at, flags, run in zip(run_job_ids, run_scheduled_at, run_flags, run_number, strict=True):
            runs.setdefault(job_id, []).append((at, flags, run))
        drops: dict[UUID, list[tuple[datetime, datetime, int, str]]] = {}
        for job_id, first, last, count, reason in zip(
            drop_job_ids, drop_first, drop_last, drop_count, drop_reason, strict=True
        ):
            drops.setdefault(job_id, []).append((first, last, count, reason))
        moved, live = [], 0
        locked = self._locked_jobs()
        for number, job_id in enumerate(job_ids):
            job = self.jobs.get(job_id)
            if not led or job_id in locked or not self.may_fire(job, shard, expected[number]):
                continue
            assert job is not None
            if not self.is_seen(job, (0, versions[number])):
                continue  # the row was changed after it was looked at
            busy = overlap[number] != "parallel" and self._busy(job)
            waiting = sum(run.state == "waiting" for run in self._runs_of(job_id))
            self.events.append(("moving", job_id, job.next_run_at, next_run_at[number], shard, epoch))
            born: list[datetime] = []
            fired = deferred = 0
            for at, flags, run in runs.get(job_id, ()):
                if overlap[number] == "parallel":
                    state = "queued"
                elif overlap[number] == "skip" and busy and flags & 10 != 10:
                    state = "skipped"
                elif not busy and run == 1:
                    state = "queued"
                elif overlap[number] == "queue" and waiting + run - (not busy) > max_queued[number]:
                    state = "skipped"
                else:
                    state = "waiting"
                fired += 1
                if state == "skipped":
                    self._record((job_id, at), Ended("skipped", None, 0, flags))
                else:
                    live += 1
                    born.append(at)
                    run_at = INFINITY if state == "waiting" else now
                    self._enqueue(Run(job_id, at, run_at, now, epoch, 0, flags, state), was=None)
            for first, drop_to, count, reason in drops.get(job_id, ()):
                if reason == "deferred":
                    deferred += count
                    self.catch_ups[job_id, drop_to] = CatchUp(job_id, drop_to, first, count, now, shard, epoch)
                    self.events.append(("deferred", job_id, first, drop_to, count))
                else:
                    self._record((job_id, first), Ended("missed", None, 0, 0, count), last=drop_to)
            self.events.append(("moved", job_id))
            self._set_job(
                job, next_run_at=next_run_at[number], last_run_at=max(born, default=job.last_run_at),
                extra_at=job.extra_at if busy else None,
                run_count=job.run_count + fired + deferred,
                status="ended" if next_run_at[number] is None else job.status,
            )  # fmt: skip
            moved.append(job_id)
        if live:
            self._tell("duly_work", "default")
        return [Row(moved=moved or None, led=led, live=live, notified=0)]

    def _runs_of(self, job_id: UUID) -> list[Run]:
        return [run for run in self.runs.values() if run.job_id == job_id]

    def _mark_of_line(self, job_id: UUID) -> int:
        return SERIAL if any(run.state == "waiting" for run in self._runs_of(job_id)) else 0

    def _in_claims(self, job_id: UUID) -> bool:
        return any(one.job_id == job_id for claim in self.claims.values() for one in claim.held)

    def _busy(self, job: Job) -> bool:
        if job.last_run_at is None and job.extra_at is None:
            return False
        if self._runs_of(job.job_id):
            return True
        if self._last_have_ended(job):
            return False
        return self._in_claims(job.job_id)

    def fires_catch_ups(self, shards: Sequence[int], limit: int, passing_over: Sequence[UUID]) -> list[Row]:
        oldest: dict[UUID, datetime] = {}
        for one in self.catch_ups.values():
            oldest[one.job_id] = min(one.last_at, oldest.get(one.job_id, one.last_at))
        waiting = sorted(
            (
                one
                for one in self.catch_ups.values()
                if one.shard in shards and one.last_at == oldest[one.job_id] and one.job_id not in passing_over
            ),
            key=lambda one: one.served_at,
        )
        return [
            Row(
                job_id=one.job_id, kind=job.kind, schedule=job.schedule, timezone="UTC", start_at=job.start_at,
                end_at=job.end_at, policy=job.policy, created_at=job.created_at, shard=one.shard,
                first_at=one.first_at, last_at=one.last_at, count=one.number, status=job.status,
            )
            for one in waiting[:limit]
            for job in (self.jobs[one.job_id],)
        ]  # fmt: skip

    def fires_release(
        self, shard: int, epoch: int, job_ids: Sequence[UUID], last_at: Sequence[datetime],
        expected: Sequence[datetime], first_at: Sequence[datetime | None], overlap: Sequence[str],
        max_queued: Sequence[int], run_job_ids: Sequence[UUID], run_scheduled_at: Sequence[datetime],
        run_flags: Sequence[int], run_number: Sequence[int],
    ) -> list[Row]:  # fmt: skip
        now, live = self._now(), 0
        served: list[UUID] = []
        locked = self._locked_jobs()
        runs: dict[UUID, list[tuple[datetime, int, int]]] = {}
        for job_id, at, flags, run in zip(run_job_ids, run_scheduled_at, run_flags, run_number, strict=True):
            runs.setdefault(job_id, []).append((at, flags, run))
        for number, job_id in enumerate(job_ids):
            job, catch_up = self.jobs[job_id], self.catch_ups.get((job_id, last_at[number]))
            if (
                not self.leads(shard, epoch)
                or job_id in locked
                or catch_up is None
                or catch_up.first_at != expected[number]
            ):
                continue
            served.append(job_id)
            standing = self._runs_of(job_id)
            busy = overlap[number] != "parallel" and (bool(standing) or self._in_claims(job_id))
            waiting = [run.scheduled_at for run in standing if run.state == "waiting"]
            self.events.append(("releasing", job_id, shard, epoch))
            released: list[datetime] = []
            for at, flags, run in runs.get(job_id, ()):
                if overlap[number] == "parallel" or (not busy and run == 1):
                    state = "queued"
                elif overlap[number] == "queue" and (len(waiting) if busy else -1) + run > max_queued[number]:
                    state = "skipped"
                else:
                    state = "waiting"
                if state == "skipped":
                    self._record((job_id, at), Ended("skipped", None, 0, flags))
                    continue
                released.append(at)
                if (job_id, at) not in self.runs:
                    live += 1
                    run_at = INFINITY if state == "waiting" else now
                    self._enqueue(Run(job_id, at, run_at, now, epoch, 0, flags, state), was=None)
            if released:
                self._set_job(
                    job,
                    last_run_at=max([*released, job.last_run_at] if job.last_run_at else released),
                    extra_at=max([*released, *waiting] if busy else released),
                )
            following = first_at[number]
            if following is None:
                del self.catch_ups[job_id, last_at[number]]
                self.events.append(("caught up", job_id, last_at[number]))
            else:
                left = catch_up.number - len(runs.get(job_id, ()))
                self.catch_ups[job_id, last_at[number]] = catch_up._replace(
                    first_at=following, served_at=now, number=left
                )
        if live:
            self._tell("duly_work", "default")
        return [Row(live=live, served=served or None, notified=0)]

    def fires_park(self, *args: Any) -> list[Row]:
        self.events.append(("parked", args[2], args[4]))
        return []

    # Claims.

    def runs_claim(
        self, worker_id: UUID, lease: float, limit: int, _queues: Any, _priorities: Any, _floors: Any
    ) -> list[Row]:
        now = self._now()
        startable = sorted(
            (run for run in self.runs.values() if run.run_at <= now),
            key=lambda run: (run.run_at, (run.job_id, run.scheduled_at) not in self.taken_first),
        )[:limit]
        rows = []
        if startable:
            token = UUID(int=(to_micros(now) // 1000 << 80) | 7 << 76 | self._dice.getrandbits(76))
            held = []
            for ordinal, run in enumerate(startable, start=1):
                key = run.job_id, run.scheduled_at
                del self.runs[key]
                held.append(Held(*key, run.fired_at, run.epoch, run.attempt + 1, run.flags))
                self.events.append(("claimed", key, token, run.attempt + 1))
                rows.append(
                    Row(
                        claim_id=token, ordinal=ordinal, job_id=run.job_id, scheduled_at=run.scheduled_at,
                        attempt=run.attempt + 1, flags=run.flags, name="sim", handler="sim", target=None, payload="{}",
                        payload_ref=None, timezone="UTC", policy=self.jobs[run.job_id].policy, aside=None,
                        next_run_at=None, now=None, took=None, emptied_lanes=None,
                        emptied_to=None,
                    )
                )  # fmt: skip
            self.claims[token] = Claim(token, worker_id, now, now + timedelta(seconds=lease), tuple(held))
        ahead = [run.run_at for run in self.runs.values() if now < run.run_at < INFINITY]
        rows.append(
            Row(
                claim_id=None, ordinal=None, job_id=None, scheduled_at=None, attempt=None, flags=None, name=None,
                handler=None, target=None, payload=None, payload_ref=None, timezone=None, policy=None,
                aside=None, next_run_at=min(ahead, default=None), now=now, took=timedelta(0),
                emptied_lanes=10, emptied_to=now,
            )
        )  # fmt: skip
        return rows

    def held_under(self, claim_id: UUID) -> Claim | None:
        """The fence: an outcome of a run is accepted only under a claim that still exists."""
        return self.claims.get(claim_id)

    def _named(
        self, claims: Sequence[UUID], positions: Sequence[int], ordinals: Sequence[int]
    ) -> Iterator[tuple[int, Claim, int, Held]]:
        for number, (position, ordinal) in enumerate(zip(positions, ordinals, strict=True)):
            claim = self.held_under(claims[position - 1])
            if claim is not None and ordinal not in claim.released:
                yield number, claim, ordinal, claim.held[ordinal - 1]

    def runs_complete(
        self, claims: Sequence[UUID], positions: Sequence[int], ordinals: Sequence[int], _started: Any, _finished: Any,
        _results: Any, flags: Sequence[int], close: Sequence[UUID],
    ) -> list[Row]:  # fmt: skip
        recorded, serial = 0, set()
        for number, claim, _, one in self._named(claims, positions, ordinals):
            ended = Ended("succeeded", claim.claim_id, one.attempt, one.flags | flags[number])
            if self._record((one.job_id, one.scheduled_at), ended):
                recorded += 1
                if ended.flags & SERIAL:
                    serial.add(one.job_id)
        for claim_id in close:
            if self.claims.pop(claim_id, None) is not None:
                self.events.append(("closed", claim_id))
        return [Row(accepted=recorded, serial=sorted(serial) or None)]

    def runs_requeue(
        self, claims: Sequence[UUID], positions: Sequence[int], ordinals: Sequence[int], states: Sequence[str],
        delays: Sequence[float], refunds: Sequence[int], _errors: Any, _started: Any, _finished: Any,
        flags: Sequence[int],
    ) -> list[Row]:  # fmt: skip
        now, requeued = self._now(), 0
        for number, claim, ordinal, one in list(self._named(claims, positions, ordinals)):
            if (one.job_id, one.scheduled_at) in self.history:
                continue
            self.release(claim.claim_id, ordinal)
            run_at = now + timedelta(seconds=delays[number])
            self._enqueue(
                Run(
                    *one[:2],
                    run_at,
                    one.fired_at,
                    one.epoch,
                    one.attempt - refunds[number],
                    one.flags | flags[number] | self._mark_of_line(one.job_id),
                    states[number],
                ),
                was=claim.claim_id,
            )
            requeued += 1
        if requeued:
            self._tell("duly_work", "default")
        return [Row(accepted=requeued, serial=None, notified=0)]

    def release(self, claim_id: UUID, ordinal: int) -> None:
        claim = self.claims[claim_id]
        self.claims[claim_id] = claim._replace(released=claim.released | {ordinal})

    def runs_bury(
        self, claims: Sequence[UUID], positions: Sequence[int], ordinals: Sequence[int], _errors: Any, _started: Any,
        _finished: Any, statuses: Sequence[str],
    ) -> list[Row]:  # fmt: skip
        recorded, serial = 0, set()
        for number, claim, _, one in self._named(claims, positions, ordinals):
            ended = Ended(statuses[number], claim.claim_id, one.attempt, one.flags)
            if self._record((one.job_id, one.scheduled_at), ended):
                recorded += 1
                if ended.flags & SERIAL:
                    serial.add(one.job_id)
        return [Row(accepted=recorded, serial=sorted(serial) or None)]

    def runs_expire(
        self, claims: Sequence[UUID], positions: Sequence[int], ordinals: Sequence[int], _finished: Any, _seconds: Any
    ) -> list[Row]:
        recorded, serial = 0, set()
        for _, claim, _, one in self._named(claims, positions, ordinals):
            ended = Ended("missed", claim.claim_id, one.attempt - 1, one.flags)
            if self._record((one.job_id, one.scheduled_at), ended):
                recorded += 1
                if ended.flags & SERIAL:
                    serial.add(one.job_id)
        return [Row(accepted=recorded, serial=sorted(serial) or None)]

    def runs_settled(
        self, claims: Sequence[UUID], job_ids: Sequence[UUID], scheduled_ats: Sequence[datetime]
    ) -> list[Row]:
        asked = zip(claims, job_ids, scheduled_ats, strict=True)
        return [
            Row(claim_id=claim_id, job_id=job_id, scheduled_at=at)
            for claim_id, job_id, at in asked
            if (ended := self.history.get((job_id, at))) is not None and ended.claim_id == claim_id
        ]

    def runs_heartbeat(self, worker_id: UUID, lease: float, claims: Sequence[UUID]) -> list[Row]:
        until = self._now() + timedelta(seconds=lease)
        rows = []
        if worker_id in self.nodes:
            self.nodes[worker_id] = self.nodes[worker_id]._replace(lease_until=until)
        else:
            rows.append(Row(claim_id=None, cancelled=None))
        for claim_id in sorted(claims):
            claim = self.claims.get(claim_id)
            if claim is not None and claim.worker_id == worker_id:
                self.extend(claim, until)
                rows.append(Row(claim_id=claim_id, cancelled=[]))
        return rows

    def extend(self, claim: Claim, until: datetime) -> None:
        self.claims[claim.claim_id] = claim._replace(lease_until=until)

    def _unfinished(self, claim: Claim) -> list[tuple[int, Held]]:
        return [
            (ordinal, one)
            for ordinal, one in enumerate(claim.held, start=1)
            if ordinal not in claim.released and (one.job_id, one.scheduled_at) not in self.history
        ]

    def jobs_put_in_order(self, job_ids: Sequence[UUID], whole: bool) -> list[Row]:
        notified = 0
        for job_id in job_ids:
            held = [
                (claim.claim_id, ordinal, one.scheduled_at)
                for claim in self.claims.values()
                for ordinal, one in self._unfinished(claim)
                if one.job_id == job_id
            ]
            standing = self._runs_of(job_id) if whole else self._near(job_id)
            waiting = [run.scheduled_at for run in standing if run.state == "waiting"]
            active = bool(held) or len(waiting) < len(standing)
            everything = [at for *_, at in held] + [run.scheduled_at for run in standing]
            if waiting:
                first = min(waiting)
                for run in standing:
                    goes = not active and run.scheduled_at == first
                    changed = run._replace(flags=run.flags | SERIAL)
                    if goes:
                        changed = changed._replace(state="queued", run_at=self._now())
                        self.events.append(("let go", (job_id, first)))
                        notified = 1
                    self.runs[job_id, run.scheduled_at] = changed
                for claim_id, ordinal, _ in held:
                    claim = self.claims[claim_id]
                    one = claim.held[ordinal - 1]
                    entries = list(claim.held)
                    entries[ordinal - 1] = one._replace(flags=one.flags | SERIAL)
                    self.claims[claim_id] = claim._replace(held=tuple(entries))
            if (job := self.jobs.get(job_id)) is not None:
                self._set_job(job, extra_at=max(waiting or everything, default=None))
        if notified:
            self._tell("duly_work", "default")
        return [Row(notified=notified)]

    def _near(self, job_id: UUID) -> list[Run]:
        """The runs that a short look at the line finds."""
        standing = sorted(self._runs_of(job_id), key=lambda run: run.scheduled_at)
        waiting = [run.scheduled_at for run in standing if run.state == "waiting"]
        if not waiting:
            return standing[-1:]
        return [
            run for run in standing
            if not waiting[0] < run.scheduled_at < waiting[-1]
            or run.state == "retrying" or (run.state == "queued" and run.flags & SERIAL)
        ]  # fmt: skip

    # Upkeep.

    def maintenance_expired(self, limit: int, since: datetime | None, _read_claims: bool) -> list[Row]:
        found = [claim for claim in self.claims.values() if self.has_expired(claim)]
        found = [claim for claim in found if since is None or claim.lease_until >= since]
        expired = [claim.claim_id for claim in sorted(found, key=lambda claim: claim.lease_until)[:limit]]
        return [Row(expired=expired, any_claims=bool(self.claims), now=self._now(), dead=0, took=0.0)]

    def has_expired(self, claim: Claim) -> bool:
        return claim.lease_until < self._now()

    def expired_claims(self, claim_ids: Sequence[UUID], limit: int) -> list[UUID]:
        locked = set().union(*(one.claims for one in self.transactions))
        there = [self.claims[claim_id] for claim_id in claim_ids if claim_id in self.claims]
        found = [claim for claim in there if self.has_expired(claim) and claim.claim_id not in locked]
        return [claim.claim_id for claim in sorted(found, key=lambda claim: claim.lease_until)[:limit]]

    def maintenance_rescue(self, claim_ids: Sequence[UUID], max_retries: int) -> list[Row]:
        now, requeued, buried, serial = self._now(), 0, 0, set()
        for claim_id in claim_ids:
            claim = self.claims.pop(claim_id)
            lost = self.to_take_back(claim)
            self.events.append(("rescued", claim_id, claim.worker_id))
            for _, one in lost:
                key = one.job_id, one.scheduled_at
                policy = self.jobs[one.job_id].policy
                most = json.loads(policy).get("max_retries", max_retries) if policy else max_retries
                if one.attempt <= most:
                    pause = min(30, 2 * 4 ** (one.attempt - 1)) * self._dice.random() if len(lost) > 1 else 0
                    run_at = now + timedelta(seconds=pause)
                    flags = one.flags | self._mark_of_line(one.job_id)
                    self._enqueue(
                        Run(*key, run_at, one.fired_at, one.epoch, one.attempt, flags, "queued"), was=claim_id
                    )
                    requeued += 1
                elif self._record(key, Ended("dead", claim_id, one.attempt, one.flags)):
                    buried += 1
                    if one.flags & SERIAL:
                        serial.add(one.job_id)
            self.events.append(("closed", claim_id))
        if requeued:
            self._tell("duly_work", "default")
        return [Row(requeued=requeued, buried=buried, serial=sorted(serial) or None, notified=0)]

    def to_take_back(self, claim: Claim) -> list[tuple[int, Held]]:
        return self._unfinished(claim)

    def maintenance_free_waiting(self, limit: int) -> list[Row]:
        waiting = {run.job_id for run in self.runs.values() if run.state == "waiting"}
        active = {run.job_id for run in self.runs.values() if run.state != "waiting"}
        active |= {one.job_id for claim in self.claims.values() for _, one in self._unfinished(claim)}
        return [Row(job_id=job_id) for job_id in sorted(waiting - active)[:limit]]
