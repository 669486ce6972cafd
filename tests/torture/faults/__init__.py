"""The faults that a world suffers: seeded and overlapping, each healed at its end.

    planned = plan(Random(seed), seconds=120, world=world)      # [(start, fault, duration), …] in seconds
    with open_record(folder / "faults.jsonl") as record:
        await inject_all(world, planned, record)                # returns when the last one is healed
    await world.heal()

- `plan(random, seconds, *, world, rate=0.5, kinds=None)` plans about `rate` faults per second. `kinds` are names of
  `FAULTS`, or a first word that several names share (`kill` includes `kill-backend`); None: all that this world
  allows. The same random, seconds, rate, kinds and sort of world give the same plan.
- `record` is any callable. It is called once per fault, at its end, with `{n, kind, target, begun, ended, details}`.
  A fault that could not be injected (a promotion while no standby is ready) has `details.skipped` with the reason.
  A fault that went wrong has `details.trouble`: a flaw of the harness, which `world.heal()` at the end repairs.
- `inject_all` may be cancelled: it heals and records the injected faults first.
- Two faults that would spoil each other (two on one node's network, two on the database) wait for one another;
  all other faults overlap.
"""

from __future__ import annotations

from .base import Fault, Sort
from .planning import FAULTS, Planned, Record, inject_all, open_record, plan

__all__ = ["FAULTS", "Fault", "Planned", "Record", "Sort", "inject_all", "open_record", "plan"]
