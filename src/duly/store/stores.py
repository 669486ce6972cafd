"""The store as a whole: its identity and its counts."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from duly.errors import StoreMismatch
from duly.model import Counts, TaskDefaults, from_micros
from duly.store.cluster import read_offered
from duly.store.pool import Querier
from duly.store.statements import AUDIT_STEP
from duly.store.steps import steps_of
from duly.store.tenants import KnownTenant, to_known


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures for a monitoring system: startable runs by queue, due jobs, led shards; and by the kind of their handler,
    jobs that no live worker can run, and their waiting runs."""

    queue_depth: dict[str, int] = field(default_factory=dict)
    dead_letters: int = 0
    shards_owned: dict[str, int] = field(default_factory=dict)
    shards_unowned: int = 0
    due_jobs: dict[str, int] = field(default_factory=dict)
    live_nodes: dict[str, int] = field(default_factory=dict)
    #: The age of the oldest run that may start and waits, and how late the oldest due job is.
    oldest_waiting_us: int = 0
    oldest_due_us: int = 0
    unrunnable_jobs: dict[str, int] = field(default_factory=dict)
    unrunnable_runs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    store_id: UUID
    shard_count: int
    clock_is_real: bool
    server_version: str
    partitions_until: datetime | None


@dataclass(frozen=True, slots=True)
class TransactionFacts:
    """The facts that a submit in a caller's transaction needs. `tenants`: those asked for that have settings."""

    store_id: UUID
    shard_count: int
    now: datetime
    steps: frozenset[int]
    min_version: str | None
    tenants: dict[str, KnownTenant]
    offered: dict[str, TaskDefaults]
    """The defaults of those asked for that their workers offer with some."""


async def shard_count(store: Querier) -> int:
    return (await facts(store)).shard_count


async def facts(store: Querier) -> Facts:
    row = await store.row("stores/facts")
    if row is None:
        raise StoreMismatch("the store is empty; run: duly migrate")
    return Facts(**row)


async def transaction_facts(
    store: Querier, *, tenants: Collection[str], tasks: Collection[str] = ()
) -> TransactionFacts:
    row = await store.row("stores/transaction_facts", sorted(tenants), sorted(tasks))
    if row is None:
        raise StoreMismatch("the store is empty; run: duly migrate")
    known = {one["tenant"]: to_known(one) for one in json.loads(row["tenants"])}
    steps = steps_of(int(number) for number in row["applied"].split(","))
    if not row["may_note"]:
        steps -= {AUDIT_STEP}
    return TransactionFacts(
        UUID(row["store_id"]),
        row["shard_count"],
        from_micros(row["now_us"]),
        steps,
        row["min_version"],
        known,
        read_offered(row["offered"]),
    )


async def ping(store: Querier) -> None:
    """Fails if the store does not answer."""
    await store.row("stores/ping")


async def counts(store: Querier) -> Counts:
    row = await store.row("stores/counts", MAX_COUNTED, MAX_JOBS_COUNTED)
    assert row is not None
    found = dict(row)
    more = ["overdue"] if found.pop("overdue_more") else []
    more += [name for name in ("queued", "retrying", "waiting", "dead_letters") if found[name] >= MAX_COUNTED]
    return Counts(**found, at_least=tuple(more))


#: Rows of one kind that are counted; beyond that no exact figure is needed.
MAX_COUNTED = 100_000
#: Jobs that are counted; beyond that their number is an estimate, or for a tenant "at least".
MAX_JOBS_COUNTED = 10_000
_MAX_QUEUES = 1_000


async def figures(store: Querier) -> Figures:
    by_label: dict[str, dict[str, int]] = {}
    for row in await store.fetch("stores/figures", _MAX_QUEUES, MAX_COUNTED):
        by_label.setdefault(row["figure"], {})[row["label"]] = row["value"]
    return Figures(
        queue_depth=by_label.get("queue_depth", {}),
        dead_letters=sum(by_label["dead_letters"].values()),
        shards_owned=by_label.get("shards_owned", {}),
        shards_unowned=sum(by_label["shards_unowned"].values()),
        due_jobs=by_label.get("due_jobs", {}),
        live_nodes=by_label.get("live_nodes", {}),
        oldest_waiting_us=sum(by_label["oldest_waiting"].values()),
        oldest_due_us=sum(by_label["oldest_due"].values()),
    )


# Runs that are counted for one tenant: each costs a read of its job.
_MAX_TENANT_COUNTED = 10_000


async def tenant_counts(store: Querier, *, tenant: str) -> Counts:
    """As `counts`, for one tenant, within bounds."""
    row = await store.row("stores/tenant_counts", tenant, _MAX_TENANT_COUNTED, MAX_JOBS_COUNTED)
    assert row is not None
    found = dict(row)
    more = [name for name in ("jobs", "running", "overdue") if found.pop(f"{name}_more")]
    more += ["queued", "retrying", "waiting"] if found.pop("live_more") else []
    more += ["dead_letters"] if found["dead_letters"] >= _MAX_TENANT_COUNTED else []
    return Counts(**found, at_least=tuple(more), scope="tenant")


async def webhook_secret(store: Querier) -> bytes:
    """The secret that signs calls of HTTP targets where none is configured."""
    row = await store.row("stores/webhook_secret")
    if row is None:
        raise StoreMismatch("the store is empty; run: duly migrate")
    return bytes(row["webhook_secret"])
