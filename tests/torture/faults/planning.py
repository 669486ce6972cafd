"""Draws faults, their times and durations from a seed, injects them concurrently and records them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from ..world import World
from . import clocks, database, deploys, network, processes, registries, strangers
from .base import Fault, NotNow, Sort

#: All faults by kind. Their classes have the weights and needs.
FAULTS: dict[str, type[Fault]] = {
    fault.kind: fault
    for family in (processes, network, database, strangers, deploys, clocks, registries)
    for fault in family.FAMILY
}  # fmt: skip

#: Called with one line of faults.jsonl when a fault is over.
Record = Callable[[dict[str, Any]], None]

_HEAL_SECONDS = 120.0


class Planned(NamedTuple):
    start: float
    fault: Fault
    duration: float


def chosen(kinds: Sequence[str] | None) -> list[type[Fault]]:
    """The faults of these kinds; a first word selects all kinds that begin with it (`kill`: kill-backend too)."""
    if kinds is None:
        return list(FAULTS.values())
    found: dict[str, type[Fault]] = {}
    for wanted in kinds:
        fitting = {kind: fault for kind, fault in FAULTS.items() if kind == wanted or kind.startswith(f"{wanted}-")}
        if not fitting:
            raise ValueError(f"kinds: there is no fault {wanted!r}; there are {', '.join(sorted(FAULTS))}")
        found |= fitting
    return list(found.values())


def plan(
    random: Random, seconds: float, *, world: World | Sort, rate: float = 0.5, kinds: Sequence[str] | None = None
) -> list[Planned]:
    """Plans about `rate` faults per second, all over within `seconds`. Faults that touch one thing do not overlap."""
    sort = world if isinstance(world, Sort) else Sort.of(world)
    able = [(fault, targets) for fault in chosen(kinds) if (targets := fault.targets(sort))]
    if not able:
        raise ValueError("kinds: none of these faults can be done to this world")
    planned: list[Planned] = []
    free: dict[str, float] = {}
    start = 0.0
    while True:
        start += random.expovariate(rate)
        # Drawn in any case, so that a fault that is left out does not change later ones.
        kind, targets = random.choices(able, [fault.weight for fault, _ in able])[0]
        fault = kind(random.choice(targets), random.getrandbits(48))
        duration = kind.duration(random, sort, fault.target)
        if start >= seconds:
            return planned
        # A long fault near the end is shortened, not left out: the end should have as many faults as the beginning.
        duration = round(min(duration, seconds - start), 3)
        touched = fault.touches(sort)
        if any(free.get(thing, 0.0) > start for thing in touched):
            continue
        free |= dict.fromkeys(touched, start + duration + kind.healing)
        planned.append(Planned(round(start, 3), fault, duration))


async def inject_all(world: World, planned: Sequence[Planned], record: Record) -> None:
    """Injects each fault at its time. Returns when all are healed and recorded; if cancelled, heals those under way."""
    began = time.monotonic()
    sort = Sort.of(world)
    locks: dict[str, asyncio.Lock] = {}

    async def one(number: int, planned: Planned) -> None:
        await asyncio.sleep(max(0.0, planned.start - (time.monotonic() - began)))
        async with contextlib.AsyncExitStack() as held:
            # Locks are taken in one order, so that no two faults wait for each other.
            for thing in sorted(planned.fault.touches(sort)):
                await held.enter_async_context(locks.setdefault(thing, asyncio.Lock()))
            await _carry_out(world, number, planned, record)

    tasks = [asyncio.create_task(one(number, each)) for number, each in enumerate(planned, 1)]
    try:
        if tasks:
            await asyncio.wait(tasks)
    finally:
        # Each task is cancelled only once: a second cancellation would interrupt its healing.
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None:
            raise outcome


async def _carry_out(world: World, number: int, planned: Planned, record: Record) -> None:
    fault, begun = planned.fault, time.time()
    try:
        await fault.inject(world, Random(fault.seed))
        await asyncio.sleep(planned.duration)
    except NotNow as reason:
        fault.details["skipped"] = str(reason)
    except Exception as error:  # noqa: BLE001 the run goes on, and its records say what went wrong
        fault.details["trouble"] = f"inject: {error!r}"
    finally:
        try:
            async with asyncio.timeout(_HEAL_SECONDS):
                await fault.heal(world)
        except Exception as error:  # noqa: BLE001 as above
            fault.details["trouble"] = f"{fault.details.get('trouble', '')} heal: {error!r}".strip()
        record(
            {
                "n": number, "kind": fault.kind, "target": fault.target, "begun": begun, "ended": time.time(),
                "details": {**fault.details, "planned": planned.duration},
            }
        )  # fmt: skip


@contextlib.contextmanager
def open_record(path: Path) -> Iterator[Record]:
    """Writes each fault as one line and flushes it, so that a run that dies leaves its records."""
    with path.open("a") as file:

        def record(line: dict[str, Any]) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        yield record
