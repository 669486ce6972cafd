"""Deliberately broken versions of the statements and of the product's logic. The simulation must find each of them.

Each is one plausible mistake. A simulation that does not find it would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import duly.store.fires
import duly.worker.executor
from duly.cluster.member import TRUSTED_FRACTION, MemberCoordinator
from duly.worker.completer import Completer
from duly.worker.executor import Executor
from duly.worker.leases import LeaseKeeper
from simulation.loop import VirtualTime
from simulation.model import Claim, Held, Job, Key, Model, Row


class NoEpochCheck(Model):
    """A fire does not check whether its term still stands."""

    def leads(self, shard: int, epoch: int) -> bool:
        return True


class NoCompareAndSet(Model):
    """A fire does not compare the job's next_run_at and version."""

    def may_fire(self, job: Job | None, shard: int, expected: datetime) -> bool:
        return job is not None and job.next_run_at is not None

    def is_seen(self, job: Job | None, ctid: tuple[int, int]) -> bool:
        return True


class NoFence(Model):
    """A completion is accepted although the claim is gone."""

    _remembered: dict[UUID, Claim]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._remembered = {}

    def runs_claim(self, *args: Any) -> list[Row]:
        rows = super().runs_claim(*args)
        self._remembered |= self.claims
        return rows

    def held_under(self, claim_id: UUID) -> Claim | None:
        return self._remembered.get(claim_id)

    def release(self, claim_id: UUID, ordinal: int) -> None:
        if claim_id in self.claims:
            super().release(claim_id, ordinal)


class BeatsExtendNothing(Model):
    """A heartbeat is answered, but does not extend the lease."""

    def extend(self, claim: Claim, until: datetime) -> None:
        pass


class RescueByAge(Model):
    """Rescue takes claims back by their age, even from a live worker."""

    def has_expired(self, claim: Claim) -> bool:
        return claim.claimed_at + timedelta(seconds=15) < self._now()


class RescueForgetsHistory(Model):
    """Rescue requeues runs that their claim has already recorded, too."""

    def to_take_back(self, claim: Claim) -> list[tuple[int, Held]]:
        return [(n, one) for n, one in enumerate(claim.held, start=1) if n not in claim.released]


class RequeueForgets(Model):
    """The claim does not note which runs it released: a retry that is sent twice takes effect twice."""

    def release(self, claim_id: UUID, ordinal: int) -> None:
        pass

    def _enqueue(self, run: Any, *, was: UUID | None) -> None:
        key: Key = run.job_id, run.scheduled_at
        if key not in self.runs:
            super()._enqueue(run, was=was)


class WaitersForgotten(Model):
    """Neither the end of a run nor upkeep lets a waiting run start."""

    def jobs_put_in_order(self, job_ids: Sequence[UUID], whole: bool) -> list[Row]:
        return [Row(notified=0)]


class Steals(Model):
    """A node that now and then sees no other node takes shards from their living leaders."""

    def cluster_acquire(self, node_id: UUID, shards: Sequence[int], epochs: Sequence[int], elected: bool) -> list[Row]:
        everybody, self.nodes = self.nodes, {one: node for one, node in self.nodes.items() if one == node_id}
        try:
            return super().cluster_acquire(node_id, shards, epochs, elected)
        finally:
            self.nodes = everybody

    def cluster_beat(self, node_id: UUID, lease: float) -> list[Row]:
        rows = super().cluster_beat(node_id, lease)
        if rows and self._dice.random() < 0.1:
            rows[0].values["nodes"] = [node_id]
        return rows


MODELS: dict[str, type[Model]] = {
    "epoch check dropped": NoEpochCheck,
    "next_run_at not compared": NoCompareAndSet,
    "completion not fenced": NoFence,
    "heartbeats extend nothing": BeatsExtendNothing,
    "rescue by age": RescueByAge,
    "rescue forgets history": RescueForgetsHistory,
    "requeue forgets what it let go": RequeueForgets,
    "terms taken from the living": Steals,
    "nobody who waits is let go": WaitersForgotten,
}

Patch = tuple[Any, str, Callable[[Any], Any]]


def _term_from_answer(original: Any) -> Any:
    def trust_until(self: MemberCoordinator, _moment: float) -> None:
        original(self, VirtualTime.monotonic() + self._lease * TRUSTED_FRACTION)

    return trust_until


def _claim_from_answer(original: Any) -> Any:
    def hold(self: LeaseKeeper, claim_id: UUID, _sent: float) -> bool:
        held: bool = original(self, claim_id, VirtualTime.monotonic())
        return held

    return hold


def _never(_original: Any) -> Any:
    return lambda *_: None


def _nothing_begun(_original: Any) -> Any:
    return lambda _execution: 0


def _advance_before_insert(original: Any) -> Any:
    async def fire(store: Any, epochs: dict[int, int], batch: Any) -> Any:
        own = [epochs[shard] for shard in batch.shards]
        await store.fetch("fires/advance", batch.shards, own, batch.job_ids, batch.expected, batch.next_run_at)
        return await original(store, epochs, batch)

    return fire


def _close_too_early(_original: Any) -> Any:
    def claims_to_close(_self: Completer, leaving: Mapping[UUID, int]) -> list[UUID]:
        return sorted(leaving)

    return claims_to_close


def _not_strictly(original: Any) -> Any:
    async def fire(store: Any, epochs: dict[int, int], batch: Any) -> Any:
        return await original(store, epochs, replace(batch, next_run_at=batch.expected))

    return fire


LOGIC: dict[str, list[Patch]] = {
    "term measured from the answer": [(MemberCoordinator, "_trust_until", _term_from_answer)],
    "nobody steps down": [(MemberCoordinator, "_step_down", _never)],
    "claim measured from the answer": [(LeaseKeeper, "hold", _claim_from_answer)],
    "claims never given up": [(LeaseKeeper, "_give_up_expired", _never)],
    "claim closed over unfinished runs": [(Completer, "_claims_to_close", _close_too_early)],
    "expired runs start": [(Executor, "_heed_expiry", _never)],
    "what has begun expires": [(duly.worker.executor, "_begun", _nothing_begun)],
    "next_run_at stays": [(duly.store.fires, "_send_simple_fires", _not_strictly)],
    "schedule advanced before insert": [(duly.store.fires, "_send_simple_fires", _advance_before_insert)],
}


class Advancing(Model):
    """A model that also knows the statement which the mutant sends before the real one."""

    def fires_advance(
        self, shards: Sequence[int], epochs: Sequence[int], job_ids: Sequence[UUID], expected: Sequence[datetime],
        following: Sequence[Any],
    ) -> list[Row]:  # fmt: skip
        for shard, epoch, job_id, before, after in zip(shards, epochs, job_ids, expected, following, strict=True):
            if self.leads(shard, epoch) and self.may_fire(self.jobs[job_id], shard, before):
                self.events.append(("moving", job_id, before, after, shard, epoch))
                self.events.append(("moved", job_id))
                self._set_job(self.jobs[job_id], next_run_at=after)
        return []


@contextmanager
def broken_logic(name: str) -> Iterator[None]:
    """Puts this mistake into the product."""
    before = []
    for owner, attribute, change in LOGIC[name]:
        original = getattr(owner, attribute)
        before.append((owner, attribute, original))
        setattr(owner, attribute, change(original))
    try:
        yield
    finally:
        for owner, attribute, original in before:
            setattr(owner, attribute, original)
