"""Secret fields of a payload: handlers get them, readers see `***`, and neither a change nor a mistake reveals or loses
them. tests/cli/test_secrets.py tests that they are visible nowhere."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

import isolated_tasks
from duly.api.documents import dead_letter_document, job_document
from duly.api.server import create_app
from duly.client.calls import request_of
from duly.client.documents import encode, job_body, read_job
from duly.config import Settings
from duly.errors import Conflict, InvalidInput
from duly.model import POLICY_RULES, Job, JobRequest, Policy
from duly.operations import Operations, StoreOperations
from duly.store import maintenance
from duly.store.pool import Pool
from harness.store import new_job, put, take
from harness.worker import Workbench

SECRET = "hunter2-0123456789"
JSON = {"Content-Type": "application/json"}


async def submitted(operations: Operations, payload: Any = None, *paths: str, **fields: Any) -> Job:
    request = JobRequest(
        "h",
        payload={"password": SECRET, "user": "zoe"} if payload is None else payload,
        schedule="0 0 1 1 *",
        policy=Policy(secret_fields=paths or ("password",)),
        **fields,
    )
    return await operations.jobs.get(str((await operations.submit(request)).job_id))


async def test_the_handler_gets_the_secret_and_a_redrive_keeps_it(bench: Workbench) -> None:
    got = []

    @bench.app.task(secret_fields=["password"], max_retries=0)
    async def login(password: str) -> str:
        got.append(password)
        if len(got) == 1:
            raise ValueError(password)
        return f"in with {password}"

    job_id = await bench.submit(login, {"password": SECRET})
    async with bench.working():
        run = await bench.end_of(job_id)
        assert run.error is not None
        assert run.error.message == "***"
        letter = await bench.operations.dead_letters.get(run.run_id)
        assert (letter.payload, letter.secret_fields) == ({"password": SECRET}, ("password",))
        shown = dead_letter_document(letter)
        assert (shown["payload"], shown["secret_fields"]) == ({"password": "***"}, ["password"])
        await bench.operations.dead_letters.redrive(run.run_id)
        run = await bench.end_of(job_id, "succeeded")
    assert run.result == "in with ***"
    assert got == [SECRET, SECRET]


async def test_what_a_child_process_leaves_behind_is_masked_too(
    pool: Pool, settings: Settings, operations: Operations
) -> None:
    bench = Workbench(pool, settings, operations, isolated_tasks.app)
    job_id = await bench.submit("look", {"password": SECRET}, secret_fields=["password"])
    async with bench.working():
        run = await bench.end_of(job_id)
    assert run.status == "succeeded", run.error
    assert run.result["payload"] == {"password": "***"}


async def test_a_worker_that_dies_leaves_a_letter_that_hides_as_much(pool: Pool, operations: Operations) -> None:
    policy = '{"max_retries": 0, "secret_fields": ["n"]}'
    await put(pool, new_job(pool, policy=policy, payload='{"n": 7, "m": 8}'))
    claim = await take(pool)
    await pool.query("update duly.claims set lease_until = '-infinity' where claim_id = $1", claim.claim_id)
    await maintenance.rescue(pool)
    (letter,) = (await operations.dead_letters.page()).items
    assert dead_letter_document(letter)["payload"] == {"n": "***", "m": 8}


async def test_the_same_secret_is_the_same_content_and_another_is_not(operations: Operations) -> None:
    first = await submitted(operations, None, "password", "user", dedupe_key="k")
    again = await submitted(operations, None, "user", "password", "user", dedupe_key="k")
    assert again.job_id == first.job_id
    with pytest.raises(Conflict):
        await submitted(operations, {"password": "other", "user": "zoe"}, "password", "user", dedupe_key="k")
    with pytest.raises(Conflict):
        await submitted(operations, dedupe_key="k")


async def test_who_sends_back_what_was_shown_does_not_lose_the_secret(operations: Operations) -> None:
    job = await submitted(operations, {"a": [{"password": SECRET}]}, "a.password")
    shown = job_document(job)["payload"]
    assert shown == {"a": [{"password": "***"}]}
    with pytest.raises(InvalidInput) as refused:
        await operations.jobs.change(str(job.job_id), {"payload": shown})
    assert (refused.value.field, "send the secret itself" in refused.value.message) == ("payload.a[0].password", True)
    with pytest.raises(InvalidInput) as refused:
        await submitted(operations, shown, "a.password")
    assert refused.value.field == "payload.a[0].password"
    many = [JobRequest("h", payload=shown, policy=Policy(secret_fields=("a.password",))) for _ in range(3)]
    with pytest.raises(InvalidInput) as refused:
        await operations.submit_many([JobRequest("h"), *many])
    assert refused.value.field == "jobs[1].payload.a[0].password"
    assert (await operations.jobs.get(str(job.job_id))).payload == {"a": [{"password": SECRET}]}
    # In a field that is not secret, `***` is an ordinary string.
    await submitted(operations, {"stars": "***"}, "password")


async def test_no_change_of_mind_shows_what_was_secret(operations: Operations, pool: Pool) -> None:
    job = await submitted(operations, {"card": {"number": SECRET, "of": "zoe"}}, "card.number")
    job_id = str(job.job_id)
    for paths in ([], ["other"], ["card.numbers"], ["card.number.x"]):
        with pytest.raises(InvalidInput, match="secret_fields: cannot lose a path without a new payload"):
            await operations.jobs.change(job_id, {"secret_fields": paths})
    wider = await operations.jobs.change(job_id, {"secret_fields": ["card"]})
    assert (wider.payload, job_document(wider)["payload"]) == (job.payload, {"card": "***"})
    with pytest.raises(InvalidInput, match="cannot lose a path"):
        await operations.jobs.change(job_id, {"secret_fields": ["card.number"]})
    given = await operations.jobs.change(job_id, {"secret_fields": [], "payload": {"card": "none"}})
    assert job_document(given)["payload"] == {"card": "none"}
    rows = await pool.query("select detail ->> 'old' as old from duly.job_changes where what = 'changed' order by at")
    old = [json.loads(row["old"]) for row in rows]
    assert old == [{"secret_fields": ["card.number"]}, {"payload": {"card": "***"}, "secret_fields": ["card"]}]


async def test_a_change_to_what_it_is_already_changes_nothing(operations: Operations) -> None:
    job = await submitted(operations, None, "a", "password")
    for change in (
        {"secret_fields": ["password", "a"]},
        {"payload": job.payload},
        {"secret_fields": ("a", "password")},
    ):
        assert (await operations.jobs.change(str(job.job_id), change)).version == job.version


@pytest.mark.parametrize(
    "paths",
    ["password", 7, None, {"a": 1}, [1], [["a"]], [""], ["."], ["a."], [".a"], ["a..b"], ["a\\"], ["a\n"], ["x" * 201],
     ["\x00"], [f"p{number}" for number in range(int(POLICY_RULES["secret_fields"].maximum) + 1)]],
)  # fmt: skip
async def test_what_is_no_list_of_paths_is_refused_by_name(operations: Operations, paths: Any) -> None:
    job = await submitted(operations)
    with pytest.raises(InvalidInput) as refused:
        await operations.jobs.change(str(job.job_id), {"secret_fields": paths})
    assert refused.value.field == "secret_fields"
    with pytest.raises(InvalidInput) as refused:
        await operations.submit(JobRequest("h", policy=Policy(secret_fields=paths)))
    assert refused.value.field == "secret_fields"


async def test_every_interface_takes_them(
    operations: Operations, store_operations: StoreOperations, settings: Settings, database_url: str, bench: Workbench
) -> None:
    app = create_app(store_operations)
    job = {"name": "n", "handler": "h", "payload": {"password": SECRET}, "secret_fields": ["password"]}
    ids: list[str] = []
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as http:
        ids.append((await http.post("/api/v1/jobs", json=job)).json()["job_id"])
        items = (await http.post("/api/v1/jobs/batch", json=[job, job])).json()["items"]
        lines = await http.post(
            "/api/v1/jobs/batch",
            content="\n".join([json.dumps(job)] * 2),
            headers={"Content-Type": "application/x-ndjson"},
        )
        ids += [item["job_id"] for item in [*items, *lines.json()["items"]]]
        plain = {**job, "secret_fields": [], "schedule": "@yearly"}
        late = (await http.post("/api/v1/jobs", json=plain)).json()
        assert late["payload"] == {"password": SECRET}
        patched = await http.patch(f"/api/v1/jobs/{late['job_id']}", json={"secret_fields": ["password"]})
        assert patched.json()["payload"] == {"password": "***"}
        ids.append(late["job_id"])
        refused = await http.post("/api/v1/jobs", json={**job, "secret_fields": "password"})
        assert (refused.status_code, refused.json()["field"]) == (422, "secret_fields")
        listed = (await http.get("/api/v1/jobs", params={"payload": "true"})).text
        assert SECRET not in listed
        assert '"***"' in listed
        request = request_of("h", {"password": SECRET}, secret_fields=["password"])
        made = read_job((await http.post("/api/v1/jobs", content=encode(job_body(request)), headers=JSON)).json())
        ids.append(str(made.job_id))
        assert (made.payload, made.policy.secret_fields) == ({"password": "***"}, ("password",))

    @bench.app.cron("@daily", payload={"password": SECRET}, secret_fields=["password"])
    def nightly(password: str) -> None: ...

    ids.append(str(await operations.declare(bench.app.declared[nightly.__name__])))
    connection = await asyncpg.connect(database_url)
    try:
        policy = json.dumps({"secret_fields": ["password"]})
        row = await connection.fetchval(
            "select duly.submit('h', payload => $1::jsonb, policy => $2::jsonb)", json.dumps(job["payload"]), policy
        )
        ids.append(str(row))
    finally:
        await connection.close()
    assert len(ids) == 9
    for job_id in ids:
        stored = await operations.jobs.get(job_id)
        assert (stored.payload, stored.policy.secret_fields) == ({"password": SECRET}, ("password",)), job_id
        assert job_document(stored)["payload"] == {"password": "***"}


async def test_where_it_cannot_be_read_what_is_secret_nothing_is_shown(operations: Operations, pool: Pool) -> None:
    """Another program has written bad values into the row."""
    job = await submitted(operations)
    for policy in ('{"secret_fields": "password"}', '{"secret_fields": [7]}', '{"secret_fields": [], "overlap": 7}'):
        await pool.query("update duly.jobs set policy = $2::jsonb where job_id = $1", UUID(str(job.job_id)), policy)
        spoilt = await operations.jobs.get(str(job.job_id))
        assert spoilt.unreadable is not None
        assert SECRET not in json.dumps(job_document(spoilt))
    await pool.query(
        "insert into duly.dead_letters (job_id, scheduled_at, buried_at, attempt, tenant, name, queue, handler, "
        "payload, error, attempts, secret_fields) "
        "select job_id, now(), now(), 1, tenant, name, queue, handler, payload, "
        """'{"type": "x", "message": ""}', '[]', '["a", 7]' from duly.jobs"""
    )
    (letter,) = (await operations.dead_letters.page()).items
    assert SECRET not in json.dumps(dead_letter_document(letter))


@pytest.mark.parametrize(
    ("handler", "field"),
    [
        ({"type": "http", "url": "https://example.org/?token=***"}, "handler.url"),
        ({"type": "http", "url": "https://example.org/?a=1&***"}, "handler.url"),
        ({"type": "http", "url": "https://example.org/", "secret_headers": {"X": "***"}}, "handler.secret_headers.X"),
        ({"type": "http", "url": "https://example.org/", "headers": {"Cookie": "***"}}, "handler.headers.Cookie"),
        ({"type": "command", "argv": ["x"], "secret_env": {"X": "***"}}, "handler.secret_env.X"),
    ],
)
async def test_a_handler_as_it_is_shown_is_no_handler(
    operations: Operations, handler: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput, match="stands for a hidden secret") as refused:
        await operations.submit(JobRequest(handler))
    assert refused.value.field == field
    fine = {"type": "http", "url": "https://example.org/?a=x***", "headers": {"X-Stars": "***"}}
    await operations.submit(JobRequest(fine))


async def test_a_urls_query_is_shown_to_nobody_and_sent_as_it_is(operations: Operations) -> None:
    url = "https://example.org/hook?token=abc123&format=json"
    job_id = str((await operations.submit(JobRequest({"type": "http", "url": url}, schedule="@yearly"))).job_id)
    job = await operations.jobs.get(job_id)
    assert isinstance(job.handler, dict)
    assert job.handler["url"] == url
    assert job_document(job)["handler"]["url"] == "https://example.org/hook?token=***&format=***"
