"""The document of a run in every state: the attempts so far, the next step, and why it did not run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest

from duly.api.schemas import RunDocument
from duly.api.server import create_app
from duly.client.documents import read_run
from duly.model import Buried, Requeued, make_run_id
from duly.operations import StoreOperations
from duly.store import cluster, maintenance, runs
from duly.store.pool import Pool
from harness.store import due_job, fire_now, fire_of, lead, put, succeeded, take

JOBS = "/api/v1/jobs"
ERROR = '{"type": "Boom", "message": "it broke", "traceback": "line 1"}'
BOOM = {"type": "Boom", "message": "it broke", "traceback": "line 1"}


@pytest.fixture
async def client(store_operations: StoreOperations) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_app(store_operations))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def submit(client: httpx.AsyncClient, **fields: Any) -> str:
    response = await client.post(JOBS, json={"name": "report", "handler": "report", **fields})
    assert response.status_code == 201, response.text
    return str(response.json()["job_id"])


async def only_run(client: httpx.AsyncClient, job_id: str) -> dict[str, Any]:
    """The job's only run. It is the same in the list, by itself and as read by the client, and fits its description."""
    (listed,) = (await client.get(f"{JOBS}/{job_id}/runs")).json()["items"]
    alone = (await client.get(f"/api/v1/runs/{listed['run_id']}")).json()
    assert alone == listed
    RunDocument.model_validate(alone)
    read = read_run(alone)
    assert (read.next_attempt_at is None) == (alone["next_attempt_at"] is None)
    assert read.note == alone["note"]
    return dict(alone)


async def named_worker(pool: Pool, name: str) -> Any:
    worker_id = uuid4()
    await cluster.join(pool, node_id=worker_id, kind="worker", name=name, version="0", lease_seconds=60, info={})
    return worker_id


async def test_a_run_that_is_retrying_shows_its_last_error_and_when_it_goes_on(
    client: httpx.AsyncClient, pool: Pool
) -> None:
    job_id = await submit(client)
    claim = await take(pool, worker_id=await named_worker(pool, "red"))
    before = pool.clock.now()
    await runs.requeue(pool, [Requeued(run, "retrying", 600.0, 1_000_000, 2_000_000, ERROR) for run in claim.runs])
    run = await only_run(client, job_id)
    assert (run["status"], run["error"]) == ("retrying", BOOM)
    wait = datetime.fromisoformat(run["next_attempt_at"]) - before
    assert timedelta(seconds=599) < wait < timedelta(seconds=660)
    assert [(one["attempt"], one["worker"], one["error"]) for one in run["attempts"]] == [(1, "red", BOOM)]


async def test_a_run_that_a_dead_worker_held_shows_that_attempt_at_once(client: httpx.AsyncClient, pool: Pool) -> None:
    job_id = await submit(client)
    await take(pool, worker_id=await named_worker(pool, "gone"), lease=-1)
    assert (await maintenance.rescue(pool)).requeued == 1
    run = await only_run(client, job_id)
    assert (run["status"], run["attempt"], run["error"]["type"]) == ("queued", 1, "LeaseLost")
    assert [(one["attempt"], one["worker"]) for one in run["attempts"]] == [(1, "gone")]
    assert run["next_attempt_at"] is not None


@pytest.mark.parametrize("failures", [0, 2])
async def test_a_success_is_among_the_attempts(client: httpx.AsyncClient, pool: Pool, failures: int) -> None:
    job_id = await submit(client)
    worker_id = await named_worker(pool, "blue")
    for _ in range(failures):
        claim = await take(pool, worker_id=worker_id)
        await runs.requeue(pool, [Requeued(run, "retrying", 0.0, 1, 2, ERROR) for run in claim.runs])
    claim = await take(pool, worker_id=worker_id)
    await runs.complete(pool, [succeeded(run) for run in claim.runs], [claim.runs[0].claim_id])
    run = await only_run(client, job_id)
    assert (run["status"], run["error"], run["next_attempt_at"], run["note"]) == ("succeeded", None, None, None)
    tried = [(one["attempt"], one["worker"], one["error"]) for one in run["attempts"]]
    assert tried == [(number, "blue", BOOM) for number in range(1, failures + 1)] + [(failures + 1, "blue", None)]
    last = run["attempts"][-1]
    assert (last["started_at"], last["finished_at"]) == (run["started_at"], run["finished_at"])


async def test_a_run_that_waits_says_when_it_may_begin_and_one_in_a_line_does_not(
    client: httpx.AsyncClient, pool: Pool
) -> None:
    job_id = await submit(client)
    run = await only_run(client, job_id)
    assert (run["status"], run["next_attempt_at"]) == ("queued", run["scheduled_at"])
    assert (run["attempts"], run["error"]) == ([], None)
    await client.post(f"{JOBS}/{job_id}/trigger")
    waiting = (await client.get(f"{JOBS}/{job_id}/runs")).json()["items"][0]
    assert (waiting["status"], waiting["next_attempt_at"]) == ("waiting", None)


async def test_missed_occurrences_say_which_rule_and_how_many(client: httpx.AsyncClient, pool: Pool) -> None:
    due = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=2)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    batch = fire_of(job, next_run_at=due + timedelta(hours=9), scheduled=[])
    batch.drop_job_ids = [job.job_id]
    batch.drop_first, batch.drop_last = [due], [due + timedelta(hours=1)]
    batch.drop_count, batch.drop_reason = [2], ["RUN_ONCE"]
    await fire_now(pool, shard=job.shard, epoch=epoch, batch=batch)
    run = await only_run(client, str(job.job_id))
    assert (run["status"], run["missed"]) == ("missed", True)
    first, last = (moment.isoformat().replace("+00:00", "Z") for moment in (due, due + timedelta(hours=1)))
    assert run["note"] == {
        "reason": "RUN_ONCE", "count": 2, "first": first, "last": last, "overlap": None, "unfinished": None,
        "unfinished_run_id": None,
    }  # fmt: skip


async def test_a_skipped_occurrence_says_which_run_was_unfinished(client: httpx.AsyncClient, pool: Pool) -> None:
    due = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=4)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    for step in range(2):
        at = due + timedelta(seconds=step)
        await fire_now(
            pool, shard=job.shard, epoch=epoch,
            batch=fire_of(job._replace(next_run_at=at), next_run_at=at + timedelta(seconds=1)),
        )  # fmt: skip
    skipped = (await client.get(f"{JOBS}/{job.job_id}/runs")).json()["items"][0]
    assert (skipped["status"], skipped["note"]["reason"], skipped["note"]["overlap"]) == ("skipped", "overlap", "skip")
    assert skipped["note"]["unfinished_run_id"] == make_run_id(job.job_id, due)
    assert skipped["attempts"] == []


async def test_a_cancelled_run_says_why(client: httpx.AsyncClient, pool: Pool) -> None:
    job_id = await submit(client)
    await client.delete(f"{JOBS}/{job_id}")
    run = await only_run(client, job_id)
    assert (run["status"], run["note"]["reason"]) == ("cancelled", "the job was cancelled")


async def test_a_dead_letter_names_the_workers_that_tried_it(client: httpx.AsyncClient, pool: Pool) -> None:
    await submit(client)
    claim = await take(pool, worker_id=await named_worker(pool, "red"))
    await runs.requeue(pool, [Requeued(run, "retrying", 0.0, 1, 2, ERROR) for run in claim.runs])
    forgotten = uuid4()  # a worker whose row is gone
    claim = await take(pool, worker_id=forgotten)
    await runs.bury(pool, [Buried(run, 1, 2, ERROR) for run in claim.runs])
    (letter,) = (await client.get("/api/v1/dead-letters", params={"payload": "true"})).json()["items"]
    assert [one["worker"] for one in letter["attempts"]] == ["red", str(forgotten)]
    assert (await client.get(f"/api/v1/dead-letters/{letter['run_id']}")).json() == letter


async def test_a_redrive_without_a_filter_must_say_all(client: httpx.AsyncClient, pool: Pool) -> None:
    for _ in range(2):
        await submit(client)
    claim = await take(pool)
    await runs.bury(pool, [Buried(run, 1, 2, ERROR) for run in claim.runs])
    for careless in ({}, {"name": None}, {"all": False}):
        refused = await client.post("/api/v1/dead-letters/redrive", json=careless)
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "all"), careless
    assert len((await client.get("/api/v1/dead-letters")).json()["items"]) == 2
    swept = await client.post("/api/v1/dead-letters/redrive", json={"all": True})
    assert swept.json()["redriven"] == 2


async def test_labels_are_asked_for_as_key_and_value(client: httpx.AsyncClient) -> None:
    await submit(client, name="a", labels={"team": "data", "url": "x:y"})
    await submit(client, name="b", labels={"team": "web"})

    async def listed(*labels: str) -> list[str]:
        answer = await client.get(JOBS, params=[("label", label) for label in labels])
        assert answer.status_code == 200, answer.text
        return [job["name"] for job in answer.json()["items"]]

    assert await listed("team=data") == await listed("team=data", "url=x:y") == ["a"]
    assert await listed("team=web") == ["b"]
