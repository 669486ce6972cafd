"""Schedulers of one store use one coordinator: one that would use another refuses to start."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from duly.config import load_settings
from duly.errors import ConfigError
from duly.node import SchedulerNode, running_scheduler
from duly.store import cluster
from duly.store.pool import Pool


async def scheduler_beside(pool: Pool, coordinator: str, *, path: str | None = None) -> None:
    """Makes the row of a live scheduler with that coordinator."""
    info = {"coordinator": coordinator} | ({} if path is None else {"registry_path": path})
    await cluster.join(
        pool, node_id=uuid4(), kind="scheduler", name="first:1", version="0", lease_seconds=60, info=info
    )


async def start(pool: Pool, coordinator: str) -> None:
    settings = load_settings(database_url=pool.url, coordinator=coordinator)
    async with running_scheduler(pool, settings):
        pass


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("postgres", "postgres-advisory"),
        ("postgres-advisory", "postgres"),
        ("etcds", "postgres"),
        ("zookeeper", "etcd://h:1"),
    ],
)
async def test_another_coordinator_is_refused_before_it_takes_a_shard(pool: Pool, first: str, second: str) -> None:
    await scheduler_beside(pool, first)
    kind = first.replace("etcds", "etcd")
    with pytest.raises(ConfigError, match=rf"DULY_COORDINATOR.* first:1 is alive and uses {kind}: .*stop all"):
        await start(pool, second)
    rows = await pool.query("select name from duly.nodes")
    assert [row["name"] for row in rows] == ["first:1"]
    # What had started before the coordinator does not go on.
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_another_place_in_the_same_registry_is_refused(pool: Pool) -> None:
    await scheduler_beside(pool, "etcd", path="/one/nodes/")
    with pytest.raises(ConfigError, match="uses etcd at /one/nodes/"):
        await start(pool, "etcd://127.0.0.1:1?prefix=/two")


async def test_a_scheduler_whose_lease_is_over_does_not_count(pool: Pool) -> None:
    await scheduler_beside(pool, "postgres-advisory")
    await pool.query("update duly.nodes set lease_until = duly.now()")
    await start(pool, "postgres")


async def test_the_same_coordinator_is_never_refused(pool: Pool) -> None:
    await scheduler_beside(pool, "postgres")
    await start(pool, "postgres")


async def test_of_two_that_start_in_one_moment_at_most_one_goes_on(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have looked, and seen nobody, before either joins."""
    looked = asyncio.Barrier(2)
    real = cluster.other_schedulers

    async def look(store: Pool, **about: object) -> list[cluster.OtherScheduler]:
        found = await real(store, **about)  # type: ignore[arg-type]
        if first_look:
            first_look.pop()
            await looked.wait()
        return found

    first_look = [1, 2]
    monkeypatch.setattr(cluster, "other_schedulers", look)
    nodes = [
        SchedulerNode(pool, load_settings(database_url=pool.url, coordinator=kind))
        for kind in ("postgres", "postgres-advisory")
    ]
    results = await asyncio.gather(*(node.coordinator.start() for node in nodes), return_exceptions=True)
    refused = [result for result in results if isinstance(result, ConfigError)]
    assert len(refused) >= 1
    rows = await pool.query("select count(*) as alive from duly.nodes where lease_until > duly.now()")
    assert rows[0]["alive"] == 2 - len(refused)
    for node, result in zip(nodes, results, strict=True):
        if result is None:
            await node.stop()
