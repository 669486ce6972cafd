"""The state of a cluster: its nodes, the leaders of its shards, and the work that waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A scheduler or worker: `shards` is the number of shards it leads, `held` the number of runs it holds."""

    node_id: UUID
    kind: str
    name: str
    version: str
    started_at: datetime
    lease_until: datetime
    stopped_at: datetime | None
    info: dict[str, Any]
    alive: bool
    shards: int
    held: int


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """A shard and the node that leads it: `node_id` and `node` are None if no node does."""

    shard: int
    epoch: int
    node_id: UUID | None
    since: datetime
    node: str | None
    alive: bool


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of jobs and runs, for people: exact counts of millions of rows would be too slow for a status line.

    `scope`: whose jobs and runs they count. `jobs_estimated`: there are so many jobs that their number is an estimate.
    `at_least`: names of the counters that reached their upper bound; the real number may be larger.
    """

    jobs: int
    queued: int
    retrying: int
    waiting: int
    running: int
    dead_letters: int
    overdue: int
    oldest_overdue_at: datetime | None
    jobs_estimated: bool = False
    at_least: tuple[str, ...] = ()
    scope: Literal["store", "tenant"] = "store"


@dataclass(frozen=True, slots=True)
class Unrunnable:
    """Jobs of one tenant, queue and handler that no live worker can run.

    `kind` is `task`, `http` or `command`; `handler` is the task's name or the command's program. `jobs` counts active
    jobs (`at_least`: there may be more), `runs` the runs that were seen waiting. `job_id` is one of the jobs.
    """

    tenant: str
    queue: str
    kind: str
    handler: str
    jobs: int
    runs: int
    at_least: bool
    job_id: UUID
    job_name: str | None
    message: str
    next_step: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """Schedulers and workers, which scheduler leads which shard, and the jobs that no live worker can run."""

    nodes: list[NodeStatus]
    shards: list[ShardStatus]
    lag_seconds: float
    """Lateness of the oldest job that is due and has not fired; 0 if there is none."""
    unrunnable: tuple[Unrunnable, ...] = field(default=(), kw_only=True)
    surveyed_at: datetime | None = field(default=None, kw_only=True)
    """Every job that was active then was looked at for `unrunnable`, beside the latest jobs; None: only a part."""


@dataclass(frozen=True, slots=True)
class ClusterStatus(Cluster):
    """A cluster and its `Counts`."""

    counts: Counts
