"""A worker trusts a lease from the moment it asked for it, not from the moment of the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from duly.store.pool import Pool
from duly.store.runs import Beat
from duly.worker import leases
from duly.worker.leases import LeaseKeeper

LEASE = 10.0


class Store:
    """Answers a heartbeat after `takes` seconds, on a clock that only this store moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.takes = 0.0

    def monotonic(self) -> float:
        return self.now

    async def heartbeat(self, _pool: Any, *, claims: Collection[UUID], **_: Any) -> Beat:
        self.now += self.takes
        return Beat({claim_id: [] for claim_id in claims}, joined=True)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.setattr(leases, "time", SimpleNamespace(monotonic=store.monotonic))
    monkeypatch.setattr(leases, "runs", store)
    return store


@pytest.fixture
async def lost() -> list[UUID]:
    return []


@pytest.fixture
async def keeper(lost: list[UUID]) -> LeaseKeeper:
    async def join(_: Pool) -> None:
        pass

    return LeaseKeeper(
        "", worker_id=uuid4(), lease_seconds=LEASE, interval=LEASE / 3, pgbouncer=False, schema="duly", join=join,
        lost=lost.append, cancelled=lambda *_: None,
    )  # fmt: skip


async def test_a_claim_is_trusted_from_when_it_was_asked_for(store: Store, keeper: LeaseKeeper) -> None:
    asked, claim_id = store.now, uuid4()
    store.now += 0.5 * LEASE
    assert keeper.hold(claim_id, asked)
    assert keeper.holds(claim_id)
    store.now = asked + 0.9 * LEASE
    assert not keeper.holds(claim_id)


async def test_a_claim_whose_answer_took_as_long_as_its_lease_is_left_alone(store: Store, keeper: LeaseKeeper) -> None:
    claim_id = uuid4()
    assert not keeper.hold(claim_id, store.now - LEASE)
    assert not keeper.holds(claim_id)


async def test_a_beat_extends_trust_from_when_it_was_sent(store: Store, keeper: LeaseKeeper, lost: list[UUID]) -> None:
    claim_id = uuid4()
    keeper.hold(claim_id, store.now)
    store.now += 0.5 * LEASE
    sent, store.takes = store.now, 0.3 * LEASE
    await keeper._beat(cast("Pool", None))
    assert keeper.holds(claim_id)
    store.now = sent + 0.9 * LEASE
    assert not keeper.holds(claim_id)
    await asyncio.sleep(0)
    assert lost == [claim_id]


async def test_who_works_under_a_lease_is_told_once_when_it_can_be_trusted_no_more(
    store: Store, keeper: LeaseKeeper, lost: list[UUID]
) -> None:
    old, young = uuid4(), uuid4()
    keeper.hold(old, store.now)
    store.now += 0.5 * LEASE
    keeper.hold(young, store.now)
    store.now += 0.4 * LEASE
    for _ in range(2):
        keeper._give_up_expired()
        await asyncio.sleep(0)
        assert lost == [old]
    assert keeper.holds(young)
