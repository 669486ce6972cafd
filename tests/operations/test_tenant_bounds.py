"""Tenants that may use only some tasks and queues, and no commands: every way to submit or change a job is checked."""

from __future__ import annotations

from typing import Any

import asyncpg
import httpx
import pytest

from duly import Duly
from duly.api.server import create_app
from duly.config import Settings
from duly.errors import Forbidden, InvalidInput, NotFound
from duly.model import JobRequest
from duly.operations import Operations, StoreOperations
from duly.operations.rights import is_among
from duly.store.pool import Pool

COMMAND = {"type": "command", "argv": ["id"]}
HOOK = {"type": "http", "url": "https://example.org/"}


@pytest.fixture
async def operations(store_operations: StoreOperations) -> Operations:
    """The operations of the tenant acme."""
    return store_operations.for_tenant("acme")


@pytest.fixture
async def bound(operations: Operations, store_operations: StoreOperations) -> Operations:
    await store_operations.tenants.set("acme", tasks=["reports.*", "mail"], queues=["acme"], commands=False)
    return operations


def request(handler: Any = "mail", queue: str = "acme", **options: Any) -> JobRequest:
    return JobRequest(**{"schedule": "every 1h", "handler": handler, "queue": queue, **options})


async def names(operations: Operations) -> set[str]:
    return {job.name for job in (await operations.jobs.page()).items}


@pytest.mark.parametrize(
    ("wrong", "field", "told"),
    [
        ({"handler": "other"}, "handler", "may not submit task 'other'"),
        ({"handler": "reports"}, "handler", "may not submit task 'reports'"),
        ({"handler": "mail2"}, "handler", "may not submit task 'mail2'"),
        ({"handler": COMMAND}, "handler", "may not submit commands"),
        ({"queue": "default"}, "queue", "may not use queue 'default'"),
        ({"handler": HOOK, "queue": "default"}, "queue", "may not use queue 'default'"),
    ],
)
async def test_what_is_out_of_bounds_is_refused_by_its_field(
    bound: Operations, wrong: dict[str, Any], field: str, told: str
) -> None:
    for ask in (
        bound.submit_many([request(**wrong)], allow_unknown_handler=True),
        bound.submit(request(**wrong), allow_unknown_handler=True),
        bound.declare(request(**wrong, dedupe_key="k")),
    ):
        with pytest.raises(Forbidden, match=told) as refused:
            await ask
        assert refused.value.field == field
    with pytest.raises(Forbidden) as refused:
        await bound.submit_many([request(), request(**wrong)], allow_unknown_handler=True)
    assert refused.value.field == f"jobs[1].{field}"
    good, bad = await bound.submit_each([request(name="good"), request(**wrong)], allow_unknown_handler=True)
    assert not isinstance(good, Forbidden)
    assert isinstance(bad, Forbidden)
    assert await names(bound) == {"good"}


@pytest.mark.parametrize("handler", ["mail", "reports.daily", "reports.", HOOK])
async def test_what_is_within_bounds_is_taken(
    bound: Operations, store_operations: StoreOperations, handler: Any
) -> None:
    assert (await bound.submit(request(handler), allow_unknown_handler=True)).created
    # Another tenant may submit anything.
    free = request("other", "default")
    assert (await store_operations.for_tenant("free").submit(free, allow_unknown_handler=True)).created


async def test_over_http_it_is_403_and_names_the_field(bound: Operations, store_operations: StoreOperations) -> None:
    key = await store_operations.keys.create(tenant="acme", role="operator")
    transport, headers = httpx.ASGITransport(app=create_app(store_operations)), {"Authorization": f"Bearer {key.text}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        for job, field in (
            ({"handler": COMMAND, "queue": "acme"}, "handler"),
            ({"handler": "other", "queue": "acme"}, "handler"),
            ({"handler": "mail"}, "queue"),
        ):
            answer = await client.post("/api/v1/jobs", json={"name": "x", "schedule": "every 1h", **job})
            assert (answer.status_code, answer.json()["field"]) == (403, field)
        job_id = str((await bound.submit(request(), allow_unknown_handler=True)).job_id)
        answer = await client.patch(f"/api/v1/jobs/{job_id}", json={"queue": "default"})
        assert (answer.status_code, answer.json()["field"]) == (403, "queue")
        assert (await client.patch(f"/api/v1/jobs/{job_id}", json={"priority": 7})).status_code == 200


async def test_jobs_that_are_there_go_on_but_are_not_changed(
    operations: Operations, store_operations: StoreOperations
) -> None:
    job_id = str((await operations.submit(request("other"), allow_unknown_handler=True)).job_id)
    await store_operations.tenants.set("acme", tasks=["mail"])
    with pytest.raises(Forbidden, match="may not submit task 'other'"):
        await operations.jobs.change(job_id, {"payload": {"to": "all"}})
    await operations.jobs.pause(job_id)
    await operations.jobs.resume(job_id)
    await operations.jobs.trigger(job_id)
    await store_operations.tenants.set("acme", tasks=None)
    assert (await operations.jobs.change(job_id, {"payload": {"to": "all"}})).payload == {"to": "all"}


async def test_a_submit_in_a_transaction_of_the_callers_is_bound_too(
    store_operations: StoreOperations, settings: Settings, database_url: str
) -> None:
    await store_operations.tenants.set("default", queues=["acme"])
    app = Duly(settings=settings)
    connection = await asyncpg.connect(database_url)
    try:
        with pytest.raises(Forbidden, match="may not use queue"):
            await app.submit("mail", queue="other", connection=connection, allow_unknown_handler=True)
        await app.submit("mail", queue="acme", connection=connection, allow_unknown_handler=True)
    finally:
        await connection.close()
        await app.close()
    assert await names(store_operations.for_tenant("default")) == {"mail"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("'other', queue => 'acme'", "duly.submit: handler: tenant 'acme' may not submit task 'other'"),
        ("'mail'", "duly.submit: queue: tenant 'acme' may not use queue 'default'"),
        ('\'{"type": "command", "argv": ["id"]}\', queue => \'acme\'', "may not submit commands"),
    ],
)
async def test_a_submit_by_sql_is_bound_too(bound: Operations, database_url: str, arguments: str, told: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match=told):
            await connection.execute(f"select duly.submit({arguments}, tenant => 'acme')")
        await connection.execute("select duly.submit('reports.daily', queue => 'acme', tenant => 'acme')")
        await connection.execute("select duly.submit('other', tenant => 'free')")
    finally:
        await connection.close()
    assert await names(bound) == {"reports.daily"}


async def test_sql_and_python_agree_on_which_names_are_meant(pool: Pool, database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    sets: list[list[str] | None] = [None, [], ["a"], ["a.*"], ["*"], ["a_*", "b%", "ä.*"], ["A*"]]
    try:
        for names_given in sets:
            for asked in ("a", "a.", "a.b", "ab", "axb", "b%", "bc", "ä.x", "", "*", "A"):
                among = await connection.fetchval("select duly.is_among($1, $2)", asked, names_given)
                assert among == is_among(asked, None if names_given is None else tuple(names_given)), (
                    asked,
                    names_given,
                )
    finally:
        await connection.close()


async def test_bounds_are_set_kept_shown_and_lifted_one_by_one(store_operations: StoreOperations) -> None:
    await store_operations.tenants.set("acme", tasks=["a", "b", "a"], max_jobs=5)
    shown = await store_operations.tenants.set("acme", queues=["q"])
    assert (shown.tasks, shown.queues, shown.commands, shown.max_jobs) == (("a", "b"), ("q",), True, 5)
    shown = await store_operations.tenants.set("acme", tasks=None, commands=False)
    assert (shown.tasks, shown.queues, shown.commands, shown.max_jobs) == (None, ("q",), False, 5)
    assert await store_operations.tenants.get("acme") == shown == (await store_operations.tenants.all())[0]
    with pytest.raises(NotFound):
        await store_operations.tenants.get("nobody")


@pytest.mark.parametrize("names_given", [[], [""], ["a*b"], ["**"], ["x" * 201], [f"t{n}" for n in range(201)]])
async def test_names_that_are_none_are_refused(store_operations: StoreOperations, names_given: list[str]) -> None:
    for field in ("tasks", "queues"):
        with pytest.raises(InvalidInput, match=field):
            await store_operations.tenants.set("acme", **{field: names_given})  # type: ignore[arg-type]


async def test_who_is_bound_to_nothing_costs_no_statement_a_submit(
    operations: Operations, store_operations: StoreOperations
) -> None:
    await store_operations.for_tenant("free").submit(request(), allow_unknown_handler=True)
    asked: list[str] = []
    fetch = store_operations._pool.fetch

    async def listened(name: str, *arguments: Any) -> Any:
        asked.append(name)
        return await fetch(name, *arguments)

    store_operations._pool.fetch = listened  # type: ignore[method-assign]
    await store_operations.for_tenant("free").submit(request(), allow_unknown_handler=True)
    assert [name for name in asked if name.startswith("tenants/")] == []
