"""A worker trusts a lease from the moment it asked for it, not from the moment of the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from duly.store import cluster
from duly.store.pool import Pool
from duly.store.runs import Beat
from duly.worker import leases
from duly.worker.leases import LeaseKeeper
from harness.proxy import Proxy
from harness.waiting import eventually

LEASE = 10.0


class Store:
    """Answers a heartbeat after `takes` seconds, on a clock that only this store moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.takes = 0.0
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    def monotonic(self) -> float:
        return self.now

    async def heartbeat(self, _pool: Any, *, claims: Collection[UUID], **_: Any) -> Beat:
        self.now += self.takes
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
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


async def test_a_late_beat_takes_nothing_from_one_that_was_sent_after_it(store: Store, keeper: LeaseKeeper) -> None:
    claim_id = uuid4()
    keeper.hold(claim_id, store.now)

    async def later() -> None:
        store.now += 0.3 * LEASE
        await keeper._beat(cast("Pool", None))

    store.meanwhile = later
    await keeper._beat(cast("Pool", None))
    store.now += 0.8 * LEASE
    assert keeper.holds(claim_id)


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


async def test_it_has_its_connection_when_it_has_started_and_beats_on_others_while_one_hangs(
    pool: Pool, database_url: str
) -> None:
    """The link falls silent twice: after the first beat, and once more when there are two connections."""
    worker_id = uuid4()

    async def join(store: Pool) -> None:
        await cluster.join(
            store, node_id=worker_id, kind="worker", name="w", version="0", lease_seconds=0, info={}
        )  # fmt: skip

    async def beaten_until() -> Any:
        (row,) = await pool.query("select lease_until as at from duly.nodes")
        return row["at"]

    async def beaten_again() -> bool:
        return bool(await beaten_until() > before)

    await join(pool)
    with Proxy(database_url) as proxy:
        keeper = LeaseKeeper(
            proxy.url, worker_id=worker_id, lease_seconds=3, interval=1, pgbouncer=False, schema="duly", join=join,
            lost=lambda _: None, cancelled=lambda *_: None,
        )  # fmt: skip
        before = await beaten_until()
        await keeper.start()
        try:
            assert await beaten_again()
            for connections in (1, 2):
                assert proxy.forget() >= connections
                # A beat that was answered before the silence may be the next to be seen.
                for _ in range(2):
                    before = await beaten_until()
                    await eventually(beaten_again, seconds=2.4)
        finally:
            await keeper.stop()


async def test_it_starts_without_a_store_that_does_not_answer(database_url: str) -> None:
    async def join(_: Pool) -> None:
        pass

    with Proxy(database_url) as proxy:
        proxy.black_hole()
        keeper = LeaseKeeper(
            proxy.url, worker_id=uuid4(), lease_seconds=1.5, interval=0.5, pgbouncer=False, schema="duly", join=join,
            lost=lambda _: None, cancelled=lambda *_: None,
        )  # fmt: skip
        async with asyncio.timeout(10):
            await keeper.start()
            await keeper.stop()
