"""The store as a whole: what it is and how full it is."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from duly.errors import StoreMismatch
from duly.model import Counts, from_micros
from duly.store.pool import Querier
from duly.store.tenants import KnownTenant, to_known


@dataclass(frozen=True, slots=True)
class Figures:
    """What a monitoring system watches: runs that may start by queue, jobs that are due and led shards."""

    queue_depth: dict[str, int] = field(default_factory=dict)
    dead_letters: int = 0
    shards_owned: dict[str, int] = field(default_factory=dict)
    shards_unowned: int = 0
    due_jobs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    store_id: UUID
    shard_count: int
    clock_is_real: bool
    server_version: str
    partitions_until: datetime | None


@dataclass(frozen=True, slots=True)
class OldTransaction:
    """What keeps PostgreSQL from cleaning up. `seconds` is None where nobody knows for how long."""

    what: str
    seconds: float | None
    ending: str


@dataclass(frozen=True, slots=True)
class TransactionFacts:
    """The facts that a submit in a caller's transaction needs. `tenants`: those asked for that have limits."""

    store_id: UUID
    shard_count: int
    now: datetime
    version: int
    tenants: dict[str, KnownTenant]


async def shard_count(store: Querier) -> int:
    return (await facts(store)).shard_count


async def facts(store: Querier) -> Facts:
    row = await store.row("store/facts")
    if row is None:
        raise StoreMismatch("the store is empty; run: duly migrate")
    return Facts(**row)


async def transaction_facts(store: Querier, *, tenants: Collection[str]) -> TransactionFacts:
    row = await store.row("store/transaction_facts", sorted(tenants))
    if row is None:
        raise StoreMismatch("the store is empty; run: duly migrate")
    known = {one["tenant"]: to_known(one) for one in json.loads(row["tenants"])}
    return TransactionFacts(
        UUID(row["store_id"]), row["shard_count"], from_micros(row["now_us"]), row["version"], known
    )


async def ping(store: Querier) -> None:
    """Fails if the store does not answer."""
    await store.row("store/ping")


async def oldest_transaction(store: Querier) -> OldTransaction | None:
    row = await store.row("store/oldest_transaction")
    return None if row is None else OldTransaction(**row)


async def counts(store: Querier) -> Counts:
    row = await store.row("store/counts", MOST_COUNTED, MOST_JOBS)
    assert row is not None
    found = dict(row)
    more = ["overdue"] if found.pop("overdue_more") else []
    more += [name for name in ("queued", "retrying", "waiting", "dead_letters") if found[name] >= MOST_COUNTED]
    return Counts(**found, at_least=tuple(more))


#: Beyond that many of one kind, nobody needs an exact figure.
MOST_COUNTED = 100_000
#: Beyond that many jobs their number is an estimate, or of a tenant "at least".
MOST_JOBS = 10_000
_MOST_QUEUES = 1_000


async def figures(store: Querier) -> Figures:
    by_label: dict[str, dict[str, int]] = {}
    for row in await store.fetch("store/figures", _MOST_QUEUES, MOST_COUNTED):
        by_label.setdefault(row["figure"], {})[row["label"]] = row["value"]
    return Figures(
        queue_depth=by_label.get("queue_depth", {}),
        dead_letters=sum(by_label["dead_letters"].values()),
        shards_owned=by_label.get("shards_owned", {}),
        shards_unowned=sum(by_label["shards_unowned"].values()),
        due_jobs=by_label.get("due_jobs", {}),
    )


# Counting a tenant's runs looks each one's job up.
_COUNTED = 10_000


async def tenant_counts(store: Querier, *, tenant: str) -> Counts:
    """The same for one tenant, as far as that many runs tell."""
    row = await store.row("store/tenant_counts", tenant, _COUNTED, MOST_JOBS)
    assert row is not None
    found = dict(row)
    more = [name for name in ("jobs", "running", "overdue") if found.pop(f"{name}_more")]
    more += ["queued", "retrying", "waiting"] if found.pop("live_more") else []
    more += ["dead_letters"] if found["dead_letters"] >= _COUNTED else []
    return Counts(**found, at_least=tuple(more))


async def webhook_secret(store: Querier) -> bytes:
    """What calls of HTTP targets are signed with where no secret is configured."""
    row = await store.row("store/webhook_secret")
    if row is None:
        raise StoreMismatch("the store is empty; run: duly migrate")
    return bytes(row["webhook_secret"])
