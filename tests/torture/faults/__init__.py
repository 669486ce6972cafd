"""The faults that a world suffers: seeded, overlapping, each with its end.

    planned = plan(Random(seed), seconds=120, world=world)      # [(start, fault, duration), …], seconds from its begin
    with open_record(folder / "faults.jsonl") as record:
        await inject_all(world, planned, record)                # returns when the last one is healed
    await world.heal()

- `plan(random, seconds, *, world, rate=0.5, kinds=None)`: about `rate` faults a second, `kinds` to choose among: names
  of `FAULTS`, or the first word of several (`kill` is also `kill-backend`); None: all that this world allows. The same
  random, seconds, rate, kinds and sort of world give the same plan.
- `record` is called once a fault, at its end, with `{n, kind, target, begun, ended, details}`; any callable will do.
  A fault that could not be injected (a promotion while no standby is ready) has `details.skipped` with the reason.
  A fault that went wrong has `details.trouble`: a flaw of the harness, which `world.heal()` at the end makes good.
- `inject_all` may be cancelled: what is injected is healed and recorded first.
- Two faults that would spoil each other (two on one node's network, two on the database) wait for one another;
  all else overlaps.
"""

from __future__ import annotations

from .base import Fault, Sort
from .planning import FAULTS, Planned, Record, inject_all, open_record, plan

__all__ = ["FAULTS", "Fault", "Planned", "Record", "Sort", "inject_all", "open_record", "plan"]
