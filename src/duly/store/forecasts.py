"""Reads the near future: jobs that fall due soon, in groups that continue alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from duly.errors import InvalidInput
from duly.model import DEFAULT_TENANT, Policy, ScheduleKind, policy_from_stored
from duly.store.pool import Querier
from duly.timing import Definition


@dataclass(frozen=True, slots=True)
class AlikeJobs:
    """A group of `jobs` jobs, all next due at `next_run_at`, that continue alike for at most `runs_left` runs."""

    kind: ScheduleKind
    schedule: str
    timezone: str
    policy: Policy
    queue: str
    handler: str
    next_run_at: datetime
    anchor: datetime | None
    end_at: datetime | None
    runs_left: int | None
    jobs: int

    @property
    def definition(self) -> Definition:
        """The group's timing without jitter. An interval goes on from `next_run_at`, which holds the jitter already."""
        policy = replace(self.policy, jitter_seconds=0)
        created_at = self.anchor or self.next_run_at
        return Definition(self.kind, self.schedule, self.timezone, None, self.end_at, created_at, policy)


@dataclass(frozen=True, slots=True)
class Near:
    """The groups that were read. `complete_until` is None if that was everything."""

    groups: list[AlikeJobs]
    jobs_seen: int
    complete_until: datetime | None


async def near(store: Querier, *, shards: Sequence[int], tenant: str, until: datetime, limit: int) -> Near:
    """Groups of at most `limit` jobs per shard, the earliest."""
    rows = await store.fetch("forecasts/near", list(shards), tenant, until, limit)
    groups = [group for row in rows if row["kind"] is not None and (group := _to_group(row)) is not None]
    return Near(groups, rows[0]["jobs_seen"], rows[0]["complete_until"])


async def near_of_tenant(store: Querier, *, tenant: str, until: datetime, limit: int) -> list[AlikeJobs] | None:
    """All near groups of one tenant; None if it has more than `limit` active jobs, or is the default one."""
    if tenant == DEFAULT_TENANT:
        return None
    rows = await store.fetch("forecasts/near_of_tenant", tenant, until, limit)
    if rows[0]["jobs_seen"] > limit:
        return None
    return [group for row in rows if row["kind"] is not None and (group := _to_group(row)) is not None]


def _to_group(row: Any) -> AlikeJobs | None:
    """None for jobs whose policy cannot be read: they will not run."""
    try:
        policy = policy_from_stored(row["policy"])
    except InvalidInput:
        return None
    return AlikeJobs(
        kind=row["kind"],
        schedule=row["schedule"],
        timezone=row["timezone"],
        policy=policy,
        queue=row["queue"],
        handler=row["handler"],
        next_run_at=row["next_run_at"],
        anchor=row["anchor"],
        end_at=row["end_at"],
        runs_left=row["runs_left"],
        jobs=row["jobs"],
    )
