"""Keeps plans and time-zone data in step: when a newer release comes, plans move to where its rules put them.

| node | task |
| --- | --- |
| every scheduler | plans by the data that is in force in the store, whatever its own machine has |
| the leader | brings its machine's data into force if that is newer, and moves plans where the rules differ |

A release comes into force once per store, so that nodes with different data do not fight. A plan that was not moved yet
is corrected by the fire itself (`scheduler/planner.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from duly.errors import InvalidInput
from duly.maintenance.leader import LeaderService
from duly.model import policy_from_stored
from duly.store import zones
from duly.store.pool import Pool
from duly.store.zones import Move, Planned, Version
from duly.timing import (
    Definition,
    carried,
    differing,
    forget_zones,
    is_newer,
    machine_rules,
    machine_version,
    pack_rules,
    unpack_rules,
    use_rules,
)
from duly.turns import Turns

log = logging.getLogger("duly.maintenance")

# Jobs per page.
PAGE = 5_000
# Age at which a store gets its first data, which has nothing to replan: a store that lives shorter does without.
FIRST_SECONDS = 60.0
# Tries for a page whose jobs are being changed or are locked, and the pause between them.
_TRIES = 5
_PAUSE_SECONDS = 0.2


class ZoneKeeper(LeaderService):
    """Uses the time-zone data in force on this node; on the leader, also replaces it and moves plans."""

    interval = 300.0

    def __init__(self, pool: Pool, *, first_seconds: float = FIRST_SECONDS) -> None:
        super().__init__()
        self._pool = pool
        self._first_seconds = first_seconds
        self._machine: str | None = None
        self._used: tuple[str | None, list[str]] | None = None
        self._changed: Mapping[str, bytes] = {}
        self._led_since = time.monotonic()

    def lead(self, leading: bool) -> None:
        if leading and not self.leading:
            self._led_since = time.monotonic()
        super().lead(leading)

    async def run_once(self) -> float | None:
        machine = await asyncio.to_thread(machine_version)
        if self._machine not in (None, machine):
            log.info("this machine's time-zone data is %s now, and was %s", machine, self._machine)
            forget_zones()
        self._machine = machine
        known = await zones.versions(self._pool)
        if self.leading:
            if not known and (wait := self._led_since + self._first_seconds - time.monotonic()) > 0:
                return wait
            known = await self._note(machine, known)
        await self._use(machine, known)
        return await self.work() if self.leading else None

    async def work(self) -> float | None:
        known = await zones.versions(self._pool)
        if known and known[0].finished_at is None:
            await self._replan(known[0])
        return None

    async def _note(self, machine: str, known: Sequence[Version]) -> list[Version]:
        seen = [one.version for one in known]
        if machine in seen or (seen and not is_newer(machine, seen[0])):
            return list(known)
        packed = await asyncio.to_thread(lambda: pack_rules(machine_rules()))
        instead_of = seen[0] if seen else None
        if await zones.note(self._pool, version=machine, data=packed, instead_of=instead_of) and instead_of:
            log.warning("time-zone data %s comes into force in place of %s", machine, instead_of)
        return await zones.versions(self._pool)

    async def _use(self, machine: str, known: Sequence[Version]) -> None:
        """Makes this process plan by the data in force, and loads the rules before it."""
        used = (machine, [one.version for one in known[:2]])
        if not known or self._used == used:
            return
        packed = await zones.data(self._pool, wanted=used[1])
        if set(packed) != set(used[1]):
            return  # a newer release has come meanwhile: the next pass finds it
        current, rules, earlier = await asyncio.to_thread(_unpacked, machine, known, packed)
        use_rules(rules, earlier=earlier, since=known[0].noted_at)
        self._used, self._changed = used, earlier
        if rules is not None:
            log.info("planning by time-zone data %s; this machine has %s", current, machine)

    async def _replan(self, version: Version) -> None:
        after, count = version.replanned, 0
        while True:
            moved, following = await self._replan_page(version, after)
            count += moved
            await zones.progress(self._pool, version=version.version, replanned=following)
            if following is None:
                break
            after = following
        log.warning("time-zone data %s: %d jobs planned anew (%s)", version.version, count, ", ".join(self._changed))

    async def _replan_page(self, version: Version, after: UUID | None) -> tuple[int, UUID | None]:
        count = 0
        for _ in range(_TRIES):
            found, following = await zones.planned(
                self._pool, after=after, page=PAGE, zones=list(self._changed), before=version.noted_at
            )
            now = self._pool.clock.now()
            moves, turns = list[tuple[Planned, datetime]](), Turns()
            for job in found:
                if (moment := _carried(job, now)) != job.next_run_at:
                    moves.append((job, moment))
                await turns.give()
            if not moves:
                break
            moved = await zones.move(
                self._pool, [Move(job.job_id, job.version, job.next_run_at, at) for job, at in moves]
            )
            count += len(moved)
            if len(moved) == len(moves):
                break
            await asyncio.sleep(_PAUSE_SECONDS)
        return count, following


def _unpacked(
    machine: str, known: Sequence[Version], packed: Mapping[str, bytes]
) -> tuple[str, dict[str, bytes] | None, dict[str, bytes]]:
    """The version in force, its rules unless they are the machine's own, and the earlier rules that differ."""
    current = known[0].version
    in_force = unpack_rules(packed[current])
    earlier = {} if len(known) == 1 else differing(unpack_rules(packed[known[1].version]), in_force, known[0].noted_at)
    return current, None if current == machine else in_force, earlier


def _carried(job: Planned, now: datetime) -> datetime:
    try:
        definition = Definition.of(job, policy_from_stored(job.policy))
        return carried(definition, job.job_id, job.next_run_at, planned=job.planned, now=now)
    except InvalidInput:  # its zone is gone, or its time is no longer valid: the fire parks it with the reason
        return job.next_run_at
