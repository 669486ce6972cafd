"""API keys: shown once, stored hashed, cheap to tell from wrong ones, and refused soon after they are revoked."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from datetime import timedelta
from typing import Any

import pytest

from duly.config import Settings
from duly.errors import InvalidInput, NotFound, StoreUnavailable
from duly.operations import StoreOperations
from duly.operations import keys as keys_module
from duly.operations.keys import Principal
from duly.store.pool import Pool
from harness.waiting import eventually


class Counting(Pool):
    """A pool that counts the statements sent through it, by name."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool._pool, pool.url)
        self.clock = pool.clock
        self.sent: list[str] = []
        self.away = False

    async def fetch(self, name: str, *args: Any) -> list[Any]:
        self.sent.append(name)
        if self.away:
            raise StoreUnavailable("away")
        return await super().fetch(name, *args)


@pytest.fixture
def counting(pool: Pool) -> Counting:
    return Counting(pool)


@pytest.fixture
async def gate(counting: Counting, settings: Settings) -> StoreOperations:
    """The operations of another process, such as an API server."""
    return await StoreOperations.open(counting, settings)


def wrong_key(key_id: str = "0" * 12) -> str:
    """A well-formed key with the right checksum: only the store can tell that it does not exist."""
    body = f"duly_{key_id}_{keys_module._spell(secrets.randbits(256), 43)}"
    return body + keys_module._checksum(body)


async def test_a_key_stands_for_its_tenant_and_role(store_operations: StoreOperations, gate: StoreOperations) -> None:
    created = await store_operations.keys.create(tenant="acme", role="write", name="deploys")
    assert re.fullmatch(r"duly_[0-9a-z]{12}_[0-9A-Za-z]{49}", created.text)
    assert created.text.split("_")[1] == created.key.key_id
    assert await gate.keys.authenticate(created.text) == Principal(
        created.key.key_id, "acme", "write", None, name="deploys"
    )


async def test_the_store_has_no_key_only_its_hash(store_operations: StoreOperations, pool: Pool) -> None:
    created = await store_operations.keys.create(role="admin")
    secret = created.text.rpartition("_")[2]
    rows = await pool.query("select k::text as text, k.hash from duly.api_keys k")
    assert len(rows) == 1
    assert secret not in rows[0]["text"]
    assert secret.encode().hex() not in rows[0]["text"]
    assert len(rows[0]["hash"]) == 32


async def test_two_keys_have_nothing_in_common_but_their_form(store_operations: StoreOperations) -> None:
    made = [await store_operations.keys.create(role="read") for _ in range(20)]
    assert len({one.text.rpartition("_")[2][:8] for one in made}) == 20
    assert len({one.key.key_id for one in made}) == 20


async def test_whatever_is_not_a_key_is_nobody(store_operations: StoreOperations, gate: StoreOperations) -> None:
    good = (await store_operations.keys.create(role="admin")).text
    other = (await store_operations.keys.create(role="admin")).text
    key_id, secret = good.split("_")[1:]
    nobody = ["", "duly", "duly_", good[:-1], good + "x", good.upper(), f" {good}", f"{good}\n", "é" * 67, "\x00" * 67]
    nobody += [wrong_key(), wrong_key(key_id), f"duly_{other.split('_')[1]}_{secret}"]
    for text in nobody:
        assert await gate.keys.authenticate(text) is None, text
    assert await gate.keys.authenticate(good) is not None


async def test_a_slip_of_the_hand_is_refused_without_asking_the_store(
    store_operations: StoreOperations, gate: StoreOperations, counting: Counting
) -> None:
    good = (await store_operations.keys.create(role="read")).text
    counting.sent.clear()
    for position in range(len(good)):
        slip = good[:position] + ("a" if good[position] != "a" else "b") + good[position + 1 :]
        assert await gate.keys.authenticate(slip) is None
    assert counting.sent == []


async def test_a_revoked_key_is_refused_by_running_processes_within_seconds(
    store_operations: StoreOperations, gate: StoreOperations
) -> None:
    created = await store_operations.keys.create(role="write")
    assert await gate.keys.authenticate(created.text) is not None
    revoked = await store_operations.keys.revoke(created.key.key_id)
    assert revoked.revoked_at is not None

    async def is_refused() -> bool:
        return await gate.keys.authenticate(created.text) is None

    await eventually(is_refused, seconds=5)
    # The key stays revoked, and a process that had not seen it before never accepts it.
    assert await store_operations.keys.authenticate(created.text) is None
    assert (await store_operations.keys.revoke(created.key.key_id)).revoked_at == revoked.revoked_at


async def test_an_expired_key_is_refused(store_operations: StoreOperations, pool: Pool, settings: Settings) -> None:
    created = await store_operations.keys.create(role="read", expires_in=timedelta(days=90))
    assert created.key.expires_at == created.key.created_at + timedelta(days=90)
    assert await store_operations.keys.authenticate(created.text) is not None
    await pool.query("update duly.clock set shift = interval '90 days 1 second'")
    assert await (await StoreOperations.open(pool, settings)).keys.authenticate(created.text) is None
    assert (await store_operations.keys.all())[0].status(created.key.created_at + timedelta(days=91)) == "expired"


async def test_a_key_in_use_costs_a_statement_every_two_seconds_not_every_request(
    store_operations: StoreOperations, gate: StoreOperations, counting: Counting
) -> None:
    text = (await store_operations.keys.create(role="read")).text
    counting.sent.clear()
    for _ in range(500):
        assert await gate.keys.authenticate(text) is not None
    assert counting.sent.count("keys/find") <= 2


async def test_a_flood_of_wrong_keys_is_a_few_statements_and_keeps_little(
    store_operations: StoreOperations, gate: StoreOperations, counting: Counting
) -> None:
    good = (await store_operations.keys.create(role="read")).text
    flood = [wrong_key(f"{number:012d}") for number in range(5_000)]
    counting.sent.clear()
    answers = await asyncio.gather(gate.keys.authenticate(good), *map(gate.keys.authenticate, flood))
    assert answers[0] is not None
    assert not any(answers[1:])
    assert counting.sent.count("keys/find") <= 10
    assert len(gate.keys._ring._wrong) <= 2_000
    # The good key is still remembered, and a repeated wrong key costs no statement.
    counting.sent.clear()
    assert await gate.keys.authenticate(good) is not None
    assert await gate.keys.authenticate(flood[-1]) is None
    assert counting.sent == []


async def test_wrong_keys_that_come_one_after_the_other_keep_a_distance(gate: StoreOperations) -> None:
    started = time.monotonic()
    for number in range(20):
        assert await gate.keys.authenticate(wrong_key(f"{number:012d}")) is None
    assert time.monotonic() - started > 18 * 0.02


async def test_a_caller_that_goes_away_takes_the_answer_from_nobody(
    store_operations: StoreOperations, gate: StoreOperations
) -> None:
    text = (await store_operations.keys.create(role="read")).text
    first, second = (asyncio.create_task(gate.keys.authenticate(text)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second is not None


async def test_an_unreachable_store_is_no_refusal_and_is_asked_again(
    store_operations: StoreOperations, gate: StoreOperations, counting: Counting
) -> None:
    text = (await store_operations.keys.create(role="read")).text
    counting.away = True
    with pytest.raises(StoreUnavailable):
        await gate.keys.authenticate(text)
    counting.away = False
    assert await gate.keys.authenticate(text) is not None


async def test_the_last_use_is_noted_once_a_minute(
    store_operations: StoreOperations, gate: StoreOperations, counting: Counting, pool: Pool, settings: Settings
) -> None:
    created = await store_operations.keys.create(role="read")
    assert created.key.last_used_at is None
    await gate.keys.authenticate(created.text)
    used: list[object] = [None]

    async def noted() -> bool:
        used.append((await store_operations.keys.all())[0].last_used_at)
        return used[-1] != used[-2]

    await eventually(noted)
    # Another process sees that the use was noted, and writes nothing.
    counting.sent.clear()
    await (await StoreOperations.open(counting, settings)).keys.authenticate(created.text)
    await pool.query("update duly.clock set shift = interval '2 minutes'")
    late = await StoreOperations.open(counting, settings)
    await late.keys.authenticate(created.text)
    await eventually(noted)
    assert counting.sent.count("keys/touch") == 1


async def test_has_keys_is_true_from_the_first_key_on_even_when_all_are_revoked(
    store_operations: StoreOperations, pool: Pool, settings: Settings
) -> None:
    assert not await store_operations.keys.exist()
    created = await store_operations.keys.create(role="read")
    await store_operations.keys.revoke(created.key.key_id)
    assert await store_operations.keys.exist()
    assert await (await StoreOperations.open(pool, settings)).keys.exist()


async def test_a_list_is_newest_first_and_can_be_one_tenants(store_operations: StoreOperations) -> None:
    made = [await store_operations.keys.create(tenant=tenant, role="read", name=tenant) for tenant in ("a", "b", "a")]
    assert [one.key_id for one in await store_operations.keys.all()] == [one.key.key_id for one in reversed(made)]
    assert [one.name for one in await store_operations.keys.all(tenant="a")] == ["a", "a"]


async def test_a_key_is_revoked_by_its_whole_text_too_and_only_by_its_own_tenant(
    store_operations: StoreOperations,
) -> None:
    created = await store_operations.keys.create(tenant="a", role="read")
    with pytest.raises(NotFound):
        await store_operations.keys.revoke(created.key.key_id, tenant="b")
    assert (await store_operations.keys.revoke(created.text)).key_id == created.key.key_id


@pytest.mark.parametrize("key_id", ["", "nothing", "x" * 1000, "'; drop table duly.api_keys; --", "\x00"])
async def test_an_unknown_id_cannot_be_revoked(store_operations: StoreOperations, key_id: str) -> None:
    with pytest.raises(NotFound, match="no key") as caught:
        await store_operations.keys.revoke(key_id)
    assert len(str(caught.value)) < 100


async def test_a_key_that_does_not_exist_is_not_repeated_in_the_error(store_operations: StoreOperations) -> None:
    text = wrong_key()
    with pytest.raises(NotFound) as caught:
        await store_operations.keys.revoke(text)
    assert text.rpartition("_")[2] not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"role": "root"}, "role"),
        ({"role": "read", "tenant": ""}, "tenant"),
        ({"role": "read", "tenant": "a\x00b"}, "tenant"),
        ({"role": "read", "name": "x" * 201}, "name"),
        ({"role": "read", "expires_in": timedelta(0)}, "expires"),
        ({"role": "read", "expires_in": timedelta(days=-1)}, "expires"),
        ({"role": "read", "expires_in": timedelta(days=100_000)}, "expires"),
    ],
)
async def test_a_wrong_field_of_a_new_key_is_named(
    store_operations: StoreOperations, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await store_operations.keys.create(**fields)
    assert caught.value.field == field


async def test_a_tenants_rate_goes_with_its_keys(
    store_operations: StoreOperations, pool: Pool, settings: Settings
) -> None:
    text = (await store_operations.keys.create(tenant="acme", role="read")).text
    usual = settings.model_copy(update={"requests_per_second": 7.0})
    principal = await (await StoreOperations.open(pool, usual)).keys.authenticate(text)
    assert principal is not None
    assert principal.requests_per_second == 7.0
    await store_operations.tenants.set("acme", requests_per_second=2.5)
    principal = await (await StoreOperations.open(pool, usual)).keys.authenticate(text)
    assert principal is not None
    assert principal.requests_per_second == 2.5
