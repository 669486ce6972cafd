"""Checks the invariants after every statement, by the changes alone and by nothing that the product computed.

The checker keeps its own record of where each occurrence is (in the queue, under a token, ended), which epoch each
shard has, and how many runs of a job are active. Expected occurrences are counted off from the job's anchor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from simulation.model import Ended, Event, Key

QUEUE, ENDED = "queue", "ended"
# A worker judges by its own estimate of the database's clock.
CLOCK_ERROR = timedelta(seconds=1)


@dataclass
class Expected:
    """A job as the simulation submitted it."""

    job_id: UUID
    anchor: datetime
    period: timedelta
    end_at: datetime
    overlap: str
    max_retries: int
    start_within: int | None

    def expires_at(self, at: datetime) -> datetime | None:
        """The time from which on a run of this occurrence must not begin."""
        return None if self.start_within is None else at + timedelta(seconds=self.start_within)

    def occurrences(self, after_or_at: datetime, before: datetime | None) -> list[datetime]:
        """The occurrences in a range of time, counted off one by one."""
        moments, moment = [], self.anchor + self.period
        while moment <= self.end_at and (before is None or moment < before):
            if moment >= after_or_at:
                moments.append(moment)
            moment += self.period
        return moments


class Broken(Exception):
    """An invariant does not hold."""


@dataclass
class Checker:
    now: Callable[[], datetime]
    #: Whether a node, healthy now, believes that it leads this shard; and whether a worker relies on this claim.
    leads: Callable[[UUID, int], bool]
    trusts: Callable[[UUID, UUID], bool]
    jobs: dict[UUID, Expected] = field(default_factory=dict)
    where: dict[Key, UUID | str] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    waiting: set[Key] = field(default_factory=set)
    active: dict[UUID, set[Key]] = field(default_factory=dict)
    #: Deferred late occurrences, each with the last occurrence that was deferred together with it.
    deferred: dict[UUID, dict[datetime, datetime]] = field(default_factory=dict)
    live: int = 0
    under: dict[UUID, set[Key]] = field(default_factory=dict)
    standing: dict[UUID, datetime] = field(default_factory=dict)
    #: Runs whose handler has been called.
    begun: set[Key] = field(default_factory=set)
    moving: list[Any] | None = None
    answered: set[datetime] = field(default_factory=set)

    def add(self, job: Expected) -> None:
        self.jobs[job.job_id] = job
        self.standing[job.job_id] = job.occurrences(job.anchor, None)[0]

    def check(self, events: list[Event]) -> None:
        for event in events:
            getattr(self, "_" + event[0].replace(" ", "_"))(*event[1:])
        events.clear()

    # Leaders.

    def _led(self, shard: int, epoch: int, node_id: UUID, before: UUID | None) -> None:
        if epoch <= self.epochs.get(shard, 0):
            raise Broken(f"epoch {epoch} of shard {shard} was given twice")
        self.epochs[shard] = epoch
        if before is not None and before != node_id and self.leads(before, shard):
            raise Broken(f"shard {shard} has two leaders: {before} still believes in its term")

    def _fenced(self, shard: int, epoch: int) -> None:
        if epoch != self.epochs.get(shard):
            raise Broken(f"epoch {epoch} of shard {shard} took effect although {self.epochs.get(shard)} had begun")

    # Fires.

    def _moving(self, job_id: UUID, before: datetime, after: datetime | None, shard: int, epoch: int) -> None:
        self._fenced(shard, epoch)
        if before != self.standing.get(job_id):
            raise Broken(f"{job_id} was moved from {before}, which was no longer its next_run_at")
        if after is not None and after <= before:
            raise Broken(f"next_run_at of {job_id} does not increase: {before} → {after}")
        self.moving, self.answered = [job_id, before, after], set()

    def _moved(self, job_id: UUID) -> None:
        assert self.moving is not None
        _, before, after = self.moving
        self.moving = None
        expected = set(self.jobs[job_id].occurrences(before, after))
        if lost := sorted(expected - self.answered):
            raise Broken(f"occurrences of {job_id} are lost: {[at.isoformat() for at in lost]}")
        if extra := sorted(self.answered - expected):
            raise Broken(f"unexpected occurrences of {job_id}: {[at.isoformat() for at in extra]}")
        if after is None:
            self.standing.pop(job_id)
        else:
            self.standing[job_id] = after

    def _deferred(self, job_id: UUID, first: datetime, last: datetime, count: int) -> None:
        found = [at for at in self.jobs[job_id].occurrences(first, None) if at <= last]
        if len(found) != count:
            raise Broken(f"{count} late occurrences of {job_id} were deferred, but there are {len(found)}")
        self._answer(job_id, found)
        self.deferred.setdefault(job_id, {}).update(dict.fromkeys(found, last))

    def _releasing(self, _job_id: UUID, shard: int, epoch: int) -> None:
        self._fenced(shard, epoch)

    def _caught_up(self, job_id: UUID, last: datetime) -> None:
        if left := [at for at, with_it in self.deferred.get(job_id, {}).items() if with_it == last]:
            raise Broken(f"late occurrences of {job_id} are lost: {left}")

    def _answer(self, job_id: UUID, moments: list[datetime]) -> None:
        """Notes that these occurrences were handled: by the fire that moves the job, or by a release."""
        if self.moving is not None:
            for at in moments:
                if at in self.answered:
                    raise Broken(f"{job_id} at {at} is handled twice by one fire")
                self.answered.add(at)
        else:
            for at in moments:
                if at not in self.deferred.get(job_id, ()):
                    raise Broken(f"{job_id} at {at} was released, but had not been deferred")
                del self.deferred[job_id][at]

    def _parked(self, job_ids: list[UUID], reasons: list[str]) -> None:
        raise Broken(f"jobs were parked: {job_ids} {reasons}")

    # Runs.

    def _queued(self, key: Key, was: UUID | None, state: str, attempt: int) -> None:
        place = self.where.get(key)
        if was is None:
            if place is not None:
                raise Broken(f"{_name(key)} was queued twice: it is already {place}")
            self._answer(key[0], [key[1]])
            self.live += 1
        else:
            if place != was:
                raise Broken(f"{_name(key)} was put back under the stale token {was}; it is {place}")
            self.under[was].discard(key)
        self.where[key] = QUEUE
        if state == "waiting":
            self.waiting.add(key)
        else:
            self._activate(key)

    def _let_go(self, key: Key) -> None:
        if key not in self.waiting:
            raise Broken(f"{_name(key)} was let go, but was not waiting")
        self.waiting.discard(key)
        self._activate(key)

    def _activate(self, key: Key) -> None:
        active = self.active.setdefault(key[0], set())
        active.add(key)
        if len(active) > 1 and self.jobs[key[0]].overlap != "parallel":
            raise Broken(f"runs overlap: {', '.join(sorted(map(_name, active)))}")

    def _claimed(self, key: Key, token: UUID, attempt: int) -> None:
        if self.where.get(key) != QUEUE or key in self.waiting:
            raise Broken(f"{_name(key)} was claimed; it is {self.where.get(key)}, waiting: {key in self.waiting}")
        if self.now() < key[1]:
            raise Broken(f"{_name(key)} was claimed before its time")
        if attempt > self.jobs[key[0]].max_retries + 1:
            raise Broken(f"{_name(key)} is tried for the {attempt}th time")
        self.where[key] = token
        self.under.setdefault(token, set()).add(key)

    def _ended(self, key: Key, ended: Ended, last: datetime | None) -> None:
        place = self.where.get(key)
        if ended.claim_id is None:
            if place is not None:
                raise Broken(f"{_name(key)} was recorded as {ended.status}; it is {place}")
            moments = (
                [key[1]] if last is None else self.jobs[key[0]].occurrences(key[1], last + timedelta(microseconds=1))
            )
            if len(moments) != ended.number:
                raise Broken(f"{_name(key)}: {ended.number} recorded as {ended.status}, but there are {len(moments)}")
            self._answer(key[0], moments)
            for at in moments:
                self.where[key[0], at] = ENDED
            return
        if place != ended.claim_id:
            raise Broken(f"{_name(key)} was recorded under the stale token {ended.claim_id}; it is {place}")
        if ended.status == "missed":
            self._expired(key)
        self.where[key] = ENDED
        self.live -= 1
        self.under[ended.claim_id].discard(key)
        self.active[key[0]].discard(key)

    def _expired(self, key: Key) -> None:
        """A worker has recorded the run as missed instead of starting it."""
        expires_at = self.jobs[key[0]].expires_at(key[1])
        if expires_at is None or self.now() < expires_at - CLOCK_ERROR:
            raise Broken(f"{_name(key)} ended as missed; it expires at {expires_at}")
        if key in self.begun:
            raise Broken(f"{_name(key)} ended as missed, although its handler had begun")

    def begins(self, key: Key, attempt: int) -> str | None:
        """Notes that a worker calls the handler. Returns what is wrong with that."""
        expires_at = self.jobs[key[0]].expires_at(key[1])
        first = attempt == 1 and key not in self.begun
        self.begun.add(key)
        if first and expires_at is not None and self.now() > expires_at + CLOCK_ERROR:
            return f"{_name(key)} began although it had expired at {expires_at}"
        return None

    def _rescued(self, claim_id: UUID, worker_id: UUID) -> None:
        if self.trusts(worker_id, claim_id):
            raise Broken(f"claim {claim_id} was taken back while its worker relied on it")

    def _closed(self, claim_id: UUID) -> None:
        if left := self.under.pop(claim_id, None):
            raise Broken(f"{', '.join(map(_name, left))} lost: the claim was closed before the run ended")

    # The end.

    @property
    def settled(self) -> bool:
        return not self.standing and not self.live and not any(self.deferred.values())

    def unsettled(self) -> list[str]:
        """Everything that should have an outcome and has none, one line each."""
        lines = [f"{job_id} is still due at {at}" for job_id, at in self.standing.items()]
        lines += [f"{_name(key)} is {place}" for key, place in self.where.items() if place != ENDED]
        lines += [f"{job_id} has late occurrences: {left}" for job_id, left in self.deferred.items() if left]
        return lines

    def check_all(self) -> None:
        """Checks that every expected occurrence has exactly one outcome."""
        if lines := self.unsettled():
            raise Broken("not settled: " + "; ".join(lines[:10]))
        for job in self.jobs.values():
            for at in job.occurrences(job.anchor, None):
                if self.where.get((job.job_id, at)) != ENDED:
                    raise Broken(f"{_name((job.job_id, at))} has no outcome")


def _name(key: Key) -> str:
    return f"{str(key[0])[-4:]}@{key[1]:%H:%M:%S.%f}"
