"""Schedulers that are killed, stopped and asked to leave, with every coordinator. Figures: failover_table.py."""

from __future__ import annotations

import random
from uuid import uuid4

import pytest

from cluster.failover import Pair
from duly.operations import Operations
from duly.store.pool import Pool
from harness.nodes import KINDS, REGISTRIES
from harness.processes import Spawn
from harness.servers import Servers


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def coordinator(kind: str, servers: Servers) -> str:
    return servers.get(kind).address(f"test-{uuid4().hex}") if kind in REGISTRIES else kind


async def test_killed_leaders_are_replaced_within_the_lease_and_what_was_due_fires_late(
    kind: str, coordinator: str, pool: Pool, operations: Operations, spawn: Spawn
) -> None:
    # With an advisory lock a takeover takes less than a second; the long lease shows that nothing waits for its end.
    lease = 5.0 if kind == "postgres-advisory" else 1.2
    settings = {"DULY_COORDINATOR": coordinator, "DULY_LEADER_LEASE_SECONDS": str(lease)}
    pair = Pair(pool, operations, spawn, settings)
    dice = random.Random(7)
    waited = [await pair.strike("kill", dice) for _ in range(3)]
    print(f"{kind}: {waited}")
    if kind == "postgres-advisory":
        # One of the rounds may have met a busy moment of this machine.
        assert sorted(waited)[-2] < 1
        assert max(waited) < 2
    else:
        assert max(waited) < lease + 1


async def test_a_leader_that_leaves_hands_over_at_once(
    kind: str, coordinator: str, pool: Pool, operations: Operations, spawn: Spawn
) -> None:
    settings = {"DULY_COORDINATOR": coordinator, "DULY_LEADER_LEASE_SECONDS": "5"}
    pair = Pair(pool, operations, spawn, settings)
    dice = random.Random(7)
    # The second try is only for a busy moment of this machine: waiting for the lease would take ten times as long.
    if (waited := await pair.strike("leave", dice)) >= 0.5:
        waited = min(waited, await pair.strike("leave", dice))
    assert waited < 0.5


async def test_a_stopped_leader_is_replaced_within_the_lease_and_fires_nothing_when_it_wakes_up(
    kind: str, coordinator: str, pool: Pool, operations: Operations, spawn: Spawn
) -> None:
    settings = {"DULY_COORDINATOR": coordinator, "DULY_LEADER_LEASE_SECONDS": "1.5"}
    pair = Pair(pool, operations, spawn, settings)
    assert await pair.strike("stop", random.Random(7)) < 3
