"""Mutants: Duly with the guard of one promise removed. The checker must catch each within a few minutes of torture.

The product does not know the mutants. A mutant changes the text of SQL statements or replaces functions in the
processes that `torture.launch` starts, or changes the store after the migration. A mutant whose pattern is no longer in
the product fails loudly: a mutant that changes nothing would test nothing.

If Duly guards a promise twice (the fenced write, and the node that stops by itself), the mutant removes both guards:
the question is whether the checker sees the damage, not whether one guard covers for the other.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module, resources
from typing import Any


class Unmatched(Exception):
    """The product has changed, and the mutant must be adapted."""


@dataclass(frozen=True)
class Mutant:
    """`faults`: the kinds of faults that show the mutant soonest; None: any, (): none at all.

    `statements`: name → (old, new) pairs; each old text must occur exactly once. `everywhere`: the name of a statement
    that must have the old text, the old text, and the new one; every statement with the old text is changed. `patch` is
    called in every process. `database` is executed on the migrated store, `nuisance` again and again during the run.
    """

    name: str
    what: str
    faults: tuple[str, ...] | None
    statements: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    everywhere: tuple[str, str, str] | None = None
    patch: Callable[[], None] | None = None
    database: Sequence[str] = ()
    nuisance: str = ""
    standby: str = ""


def apply(name: str) -> None:
    """Applies a mutant in a process of Duly, before any other module of Duly is imported."""
    mutant = MUTANTS[name]
    if mutant.statements or mutant.everywhere:
        _mutate_statements(mutant)
    if mutant.patch is not None:
        mutant.patch()


def _mutate_statements(mutant: Mutant) -> None:
    module = import_module("duly.store.statements")
    original: Callable[..., str] = module.statement
    # With the part that writes to duly.audit, and without.
    texts: dict[tuple[str, bool], str] = {}
    for audited in (False, True):
        for name, pairs in mutant.statements.items():
            text = original(name, audited=audited)
            for old, new in pairs:
                if text.count(old) != 1:
                    raise Unmatched(f"mutant {mutant.name}: {name}.sql has {text.count(old)} times {old!r}, not once")
                text = text.replace(old, new)
            texts[name, audited] = text
        if mutant.everywhere is not None:
            surely, old, new = mutant.everywhere
            for name in _all_statements():
                if old in (text := original(name, audited=audited)):
                    texts[name, audited] = text.replace(old, new)
            if (surely, audited) not in texts:
                raise Unmatched(f"mutant {mutant.name}: {surely}.sql has no {old!r}")

    def statement(name: str, schema: str = "duly", *, audited: bool = False) -> str:
        return texts.get((name, audited)) or original(name, schema, audited=audited)

    if str(inspect.signature(statement)) != str(inspect.signature(original)):
        raise Unmatched(f"`statement` has other parameters: {inspect.signature(original)}")

    # All other modules import `statement` by name, and later.
    module.statement = statement  # type: ignore[attr-defined]


def _all_statements() -> list[str]:
    root = resources.files("duly.store").joinpath("sql")
    return [
        f"{folder.name}/{file.name.removesuffix('.sql')}"
        for folder in root.iterdir()
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    ]


def _replace(owner: Any, name: str, new: Any) -> None:
    if not hasattr(owner, name):
        raise Unmatched(f"{owner!r} has no {name}")
    setattr(owner, name, new)


def _keep_lost_leases() -> None:
    """A worker that missed its heartbeats still believes in its leases."""
    keeper = import_module("duly.worker.leases").LeaseKeeper
    _replace(keeper, "_give_up_expired", lambda self: None)


def _never_beat() -> None:
    leases = import_module("duly.worker.leases")

    async def beat(self: Any, pool: Any) -> None:
        with self._lock:
            for claim_id in self._trusted_until:
                self._trusted_until[claim_id] = leases.time.monotonic() + 3600

    _replace(leases.LeaseKeeper, "_beat", beat)


def _advance_first() -> None:
    """Moves the job in one transaction and inserts its runs in the next: a process that dies in between loses them."""
    fires = import_module("duly.store.fires")
    original = fires.fire
    if not hasattr(fires.SimpleFires(), "shards"):
        raise Unmatched("a fire has other columns")

    async def fire(store: Any, *, epochs: dict[int, int], batch: Any) -> Any:
        # Only simple fires are changed; almost all are simple.
        if isinstance(batch, fires.Fires) or None in batch.next_run_at:
            return await original(store, epochs=epochs, batch=batch)
        moved: set[Any] = set()
        columns = (batch.job_ids, batch.expected, batch.next_run_at, batch.versions)
        for shard, epoch in epochs.items():
            rows = [number for number, own in enumerate(batch.shards) if own == shard]
            ids, expected, following, versions = ([column[number] for number in rows] for column in columns)
            bare = fires.Fires(ids, expected, following, ["parallel"] * len(ids), [1] * len(ids), versions=versions)
            moved |= (await original(store, epochs={shard: epoch}, batch=bare)).moved
        await asyncio.sleep(_GAP)
        runs = zip(batch.job_ids, batch.expected, batch.run_flags, batch.shards, strict=True)
        live = [(*run, epochs[run[3]]) for run in runs if run[0] in moved]
        await store.query(_INSERT_RUNS, *([row[place] for row in live] for place in range(5)))
        return fires.Fired(frozenset(moved), frozenset(epochs), len(moved))

    _replace(fires, "fire", fire)


# Seconds between the two transactions: long enough that a kill hits this gap now and then.
_GAP = 0.2
_INSERT_RUNS = """
insert into duly.runs (job_id, scheduled_at, run_at, fired_at, epoch, shard, priority, attempt, flags, state, queue)
select j.job_id, f.at, greatest(f.at, duly.now()), duly.now(), f.epoch, f.shard, j.priority, 0, f.flags, 'queued',
    j.queue
from unnest($1::uuid[], $2::timestamptz[], $3::smallint[], $4::smallint[], $5::int[])
    as f (job_id, at, flags, shard, epoch)
join duly.jobs j on j.job_id = f.job_id
"""


def _never_expire() -> None:
    """Workers start runs however old they are."""
    _replace(import_module("duly.worker.executor").Executor, "_heed_expiry", lambda self, execution: None)


def _next_or_same() -> None:
    """A resumed job goes on with its latest past occurrence, not with its next future one.

    Only `resume` is changed, not every `next()`: then nothing would fire, because a scheduler parks such a job at once
    and a walk over a timetable never ends.
    """
    jobs = import_module("duly.operations.jobs")
    original = jobs.JobOperations._resume_at

    def resume_at(self: Any, job: Any, now: Any) -> Any:
        future = original(self, job, now)
        if job.kind == "once":
            return future
        timetable = jobs.timetable_of(job)
        found = timetable.next(future - timedelta(seconds=10))
        while (following := timetable.next(found)) < future:
            found = following
        return found

    _replace(jobs.JobOperations, "_resume_at", resume_at)


def _lead_for_ever() -> None:
    """A node that others took for dead goes on firing for its old shards: its firer does not notice the end."""
    member = import_module("duly.cluster.member").MemberCoordinator
    original = member._end
    if "view" not in member._move_towards_assignment.__code__.co_varnames:
        raise Unmatched("a pass no longer calls what it sees a view")

    def end(self: Any, shard: int) -> None:
        # A term that the node hands over by itself ends as usual.
        view = sys._getframe(1).f_locals.get("view")
        if view is not None and view.leaders[shard] == self.node_id:
            original(self, shard)
        else:
            self.terms.pop(shard, None)

    _replace(member, "_end", end)
    _replace(member, "_end_all", lambda self: self.terms.clear())


_MUTANTS = (
    Mutant(
        "token-check-dropped",
        "a rescue leaves the old claim in place, so that its worker's writes still count",
        faults=("pause", "unplug", "half-open"),
        statements={
            "maintenance/rescue": [
                (
                    "delete from duly.claims where claim_id",
                    "update duly.claims set lease_until = 'infinity' where claim_id",
                )
            ]
        },
        patch=_keep_lost_leases,
    ),
    Mutant(
        "unique-constraint-dropped",
        "an occurrence can have two outcomes in the history",
        faults=("cut-after-commit", "reset-in-batch"),
        database=(
            "alter table duly.history drop constraint history_pkey",
            "create index history_not_unique on duly.history (job_id, scheduled_at)",
        ),
    ),
    Mutant(
        "now-for-leases",
        "times are those of the transaction's start: a lease written after a wait is too short",
        faults=(),
        # An administrator locks rows now and then, for less time than a heartbeat waits for its answer.
        nuisance="begin; select from duly.claims for no key update; select pg_sleep(0.5); commit",
        database=(
            (
                "create or replace function duly.now() returns timestamptz language sql volatile "
                "as $$ select coalesce(frozen_at, now() + shift) from duly.clock $$"
            ),
        ),
    ),
    Mutant("heartbeat-skipped", "workers do not extend their leases", faults=(), patch=_never_beat),
    Mutant(
        "advanced-before-insert",
        "the schedule moves on in one transaction and the run is inserted in the next",
        faults=("kill", "postgres-crash"),
        patch=_advance_first,
    ),
    Mutant(
        "next-not-strict",
        "a resumed job goes on with the occurrence that has just passed",
        faults=(),
        patch=_next_or_same,
    ),
    Mutant(
        "rescue-by-age",
        "a claim is rescued when it is old, even if its worker sends heartbeats",
        faults=(),
        statements={
            "maintenance/expired": [
                (
                    "where lease_until < (select duly.now()) and lease_until >=",
                    "where claimed_at < (select duly.now()) - interval '5 s' and lease_until >=",
                ),
            ],
            "maintenance/lock_expired": [
                ("and lease_until < (select duly.now())", "and claimed_at < (select duly.now()) - interval '5 s'"),
            ],
        },
    ),
    Mutant("expired-all-the-same", "runs that have expired are started", faults=("kill",), patch=_never_expire),
    Mutant(
        "epoch-check-dropped",
        "a node that once led a shard may still fire for it",
        faults=("pause", "unplug", "partition"),
        everywhere=("fires/fire", "where shard = $1 and epoch = $2 for share", "where shard = $1 for share"),
        patch=_lead_for_ever,
    ),
)
MUTANTS: Mapping[str, Mutant] = {mutant.name: mutant for mutant in _MUTANTS}
