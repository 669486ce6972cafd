"""What jobs demand of a worker: the tenant, the queue, and the task or kind of target that it must have to run them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from duly.store.pool import Querier

#: The step of the migrations that brought the survey. Without it, only the latest demands are known.
STEP = 5
#: Maximum number of demands that the survey keeps.
MAX_KEPT = 10_000
# Bounds of a look at the latest demands: lanes, runs per lane, due jobs per shard, and newest jobs and changes.
_LATEST = (200, 50, 8, 1_000)


@dataclass(frozen=True, slots=True)
class Demand:
    """`handler`: the task's name, or the command's program. `jobs`: active jobs; `runs`: runs seen in the queue."""

    tenant: str
    queue: str
    kind: str
    handler: str
    jobs: int
    runs: int
    at_least: bool
    job_id: UUID
    job_name: str | None

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.tenant, self.queue, self.kind, self.handler


@dataclass(frozen=True, slots=True)
class Demands:
    """`surveyed_at`: every job that was active then is in them; None: only a part of the jobs has been looked at."""

    demands: tuple[Demand, ...] = ()
    surveyed_at: datetime | None = None


async def survey(store: Querier, *, page: int) -> None:
    """Counts the next page of jobs. Any number of nodes may do so at once."""
    await store.fetch("demands/survey", page, MAX_KEPT)


async def read(store: Querier) -> Demands:
    """What the survey has found, and what the newest, the next and the waiting jobs demand."""
    found: dict[tuple[str, str, str, str], Demand] = {}
    surveyed_at: datetime | None = None
    if store.has_step(STEP):
        row = await store.row("demands/surveyed_at")
        surveyed_at = None if row is None else row["surveyed_at"]
        for row in await store.fetch("demands/surveyed", MAX_KEPT):
            demand = Demand(**row, runs=0)
            found[demand.key] = demand
        if len(found) == MAX_KEPT:
            surveyed_at = None  # there may be more than are kept
    for row in await store.fetch("demands/latest", *_LATEST):
        demand = Demand(**row, at_least=True)
        known = found.get(demand.key)
        if known is None:
            found[demand.key] = demand
        else:
            found[demand.key] = replace(
                known,
                jobs=max(known.jobs, demand.jobs),
                at_least=known.at_least or demand.jobs > known.jobs,
                runs=demand.runs,
                job_id=demand.job_id,
                job_name=demand.job_name,
            )
    return Demands(tuple(found.values()), surveyed_at)
