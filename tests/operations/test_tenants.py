"""Tenants' limits: at most `max_jobs` active and paused jobs, even if many clients submit at the same moment."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from duly.config import Settings
from duly.errors import InvalidInput, LimitReached
from duly.model import JobRequest, Submitted
from duly.operations import Operations, StoreOperations
from duly.store import runs
from duly.store.pool import Pool
from harness.store import count, succeeded, take
from harness.waiting import eventually


@pytest.fixture
async def operations(store_operations: StoreOperations) -> Operations:
    """The operations of the tenant acme."""
    return store_operations.for_tenant("acme")


def request(**fields: Any) -> JobRequest:
    return JobRequest(**{"handler": "noop", "schedule": "every 1h", **fields})


async def test_past_its_limit_a_tenant_is_refused_and_the_others_are_not(
    operations: Operations, store_operations: StoreOperations, pool: Pool
) -> None:
    await store_operations.tenants.set("acme", max_jobs=3)
    for _ in range(3):
        await operations.submit(request())
    with pytest.raises(LimitReached, match="acme"):
        await operations.submit(request())
    await store_operations.for_tenant("other").submit(request())
    assert await count(pool, "jobs", "tenant = 'acme'") == 3


async def test_a_batch_that_does_not_fit_leaves_nothing_behind(
    operations: Operations, store_operations: StoreOperations, pool: Pool
) -> None:
    await store_operations.tenants.set("acme", max_jobs=6_000)
    with pytest.raises(LimitReached, match="6001"):
        # Enough jobs for several statements.
        await operations.submit_many([request() for _ in range(6_001)])
    assert await count(pool, "jobs") == await count(pool, "tenant_jobs") == 0
    assert len(await operations.submit_many([request() for _ in range(6_000)])) == 6_000
    assert await count(pool, "tenant_jobs") == 6_000


async def test_a_job_that_is_over_gives_its_place_back(
    operations: Operations, store_operations: StoreOperations, pool: Pool
) -> None:
    await store_operations.tenants.set("acme", max_jobs=2)
    recurring = await operations.submit(request())
    await operations.submit(request(schedule=None))
    with pytest.raises(LimitReached):
        await operations.submit(request())
    # A job whose run is under way keeps its slot.
    claim = await take(pool)
    with pytest.raises(LimitReached):
        await operations.submit(request())
    await runs.complete(pool, [succeeded(claim.runs[0])])
    await operations.submit(request())
    with pytest.raises(LimitReached):
        await operations.submit(request())
    await operations.jobs.pause(str(recurring.job_id))
    with pytest.raises(LimitReached):
        await operations.submit(request())
    await operations.jobs.cancel(str(recurring.job_id))
    await operations.submit(request())


async def test_a_known_dedupe_key_needs_no_place(operations: Operations, store_operations: StoreOperations) -> None:
    await store_operations.tenants.set("acme", max_jobs=1)
    first = await operations.submit(request(dedupe_key="k"))
    assert await operations.submit(request(dedupe_key="k")) == Submitted(first.job, created=False)
    with pytest.raises(LimitReached):
        await operations.submit_many([request(dedupe_key="k"), request(dedupe_key="other")])


async def test_a_limit_holds_when_many_submit_at_the_same_moment(
    store_operations: StoreOperations, pool: Pool, settings: Settings
) -> None:
    await store_operations.tenants.set("acme", max_jobs=50)
    others = [(await StoreOperations.open(pool, settings)).for_tenant("acme") for _ in range(4)]

    async def one(number: int) -> bool:
        try:
            await others[number % 4].submit(request())
        except LimitReached:
            return False
        return True

    answers = await asyncio.gather(*map(one, range(120)))
    assert sum(answers) == 50
    assert await count(pool, "jobs") == 50


async def test_what_a_tenant_has_when_its_limit_is_set_counts(
    operations: Operations, store_operations: StoreOperations, pool: Pool, settings: Settings
) -> None:
    for _ in range(2):
        await operations.submit(request())
        await operations.submit(request(schedule=None))
    cancelled = await operations.submit(request())
    await operations.jobs.cancel(str(cancelled.job_id))
    await store_operations.tenants.set("acme", max_jobs=5)
    fresh = (await StoreOperations.open(pool, settings)).for_tenant("acme")
    await fresh.submit(request())
    with pytest.raises(LimitReached):
        await fresh.submit(request())


async def test_a_limit_reaches_running_processes_within_seconds(
    operations: Operations, store_operations: StoreOperations, pool: Pool
) -> None:
    await operations.submit(request())
    await store_operations.tenants.set("acme", max_jobs=0)

    async def is_refused() -> bool:
        try:
            await operations.submit(request())
        except LimitReached:
            return True
        return False

    await eventually(is_refused, seconds=10)


async def test_a_limit_can_be_raised_and_taken_away(
    operations: Operations, store_operations: StoreOperations, pool: Pool, settings: Settings
) -> None:
    await store_operations.tenants.set("acme", max_jobs=1)
    await operations.submit(request())
    await store_operations.tenants.set("acme", max_jobs=2)
    await operations.submit(request())
    with pytest.raises(LimitReached):
        await operations.submit(request())
    await store_operations.tenants.set("acme", max_jobs=None)
    for _ in range(3):
        await operations.submit(request())
    # When the limit is set again, jobs submitted meanwhile count.
    await store_operations.tenants.set("acme", max_jobs=6)
    fresh = (await StoreOperations.open(pool, settings)).for_tenant("acme")
    await fresh.submit(request())
    with pytest.raises(LimitReached):
        await fresh.submit(request())


async def test_the_settings_limit_is_for_tenants_that_have_none_of_their_own(pool: Pool, settings: Settings) -> None:
    store_operations = await StoreOperations.open(pool, settings.model_copy(update={"tenant_max_jobs": 1}))
    await store_operations.tenants.set("large", max_jobs=3)
    for tenant, most in (("small", 1), ("large", 3)):
        for _ in range(most):
            await store_operations.for_tenant(tenant).submit(request())
        with pytest.raises(LimitReached, match=tenant):
            await store_operations.for_tenant(tenant).submit(request())


async def test_places_are_found_page_by_page_among_many(
    operations: Operations, store_operations: StoreOperations, pool: Pool
) -> None:
    await store_operations.tenants.set("acme", max_jobs=12_000)
    made = await operations.submit_many([request() for _ in range(12_000)])
    with pytest.raises(LimitReached):
        await operations.submit(request())
    # The newest job is on the last page.
    await operations.jobs.cancel(str(made[-1].job_id))

    async def fits() -> bool:
        with suppress(LimitReached):
            await operations.submit(request())
            return True
        return False

    # A search for free slots that found none is not repeated at once.
    await eventually(fits, seconds=10)
    with pytest.raises(LimitReached):
        await operations.submit(request())


async def test_a_tenant_without_a_limit_leaves_no_trace(
    operations: Operations, store_operations: StoreOperations, pool: Pool
) -> None:
    await store_operations.tenants.set("acme", requests_per_second=5)
    await operations.submit_many([request() for _ in range(10)])
    assert await count(pool, "tenant_jobs") == 0


async def test_a_submit_that_is_sent_again_after_its_answer_was_lost_takes_one_place(
    operations: Operations, store_operations: StoreOperations, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from duly.errors import StoreUnavailable

    await store_operations.tenants.set("acme", max_jobs=1)
    together = Pool.together
    lost = iter([True])

    async def losing(self: Pool, work: Any) -> Any:
        answer = await together(self, work)
        if next(lost, False):
            raise StoreUnavailable("the answer was lost")
        return answer

    monkeypatch.setattr(Pool, "together", losing)
    submitted = await operations.submit(request())
    assert submitted.created
    assert await count(pool, "jobs") == await count(pool, "tenant_jobs") == 1


async def test_tenants_are_listed_with_what_applies_to_them(pool: Pool, settings: Settings) -> None:
    store_operations = await StoreOperations.open(pool, settings.model_copy(update={"tenant_max_jobs": 9}))
    await store_operations.tenants.set("b", requests_per_second=2.5)
    await store_operations.tenants.set("a", max_jobs=0)
    await store_operations.tenants.set("a", requests_per_second=1)
    listed = await store_operations.tenants.all()
    assert [(one.tenant, one.max_jobs, one.requests_per_second) for one in listed] == [("a", 0, 1), ("b", 9, 2.5)]


@pytest.mark.parametrize(
    ("tenant", "limits", "field"),
    [
        ("", {"max_jobs": 1}, "tenant"),
        ("a", {"max_jobs": -1}, "max_jobs"),
        ("a", {"max_jobs": 10**13}, "max_jobs"),
        ("a", {"requests_per_second": 0}, "requests_per_second"),
        ("a", {"requests_per_second": float("nan")}, "requests_per_second"),
        ("a", {"requests_per_second": float("inf")}, "requests_per_second"),
    ],
)
async def test_a_wrong_limit_is_named(
    store_operations: StoreOperations, tenant: str, limits: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await store_operations.tenants.set(tenant, **limits)
    assert caught.value.field == field
