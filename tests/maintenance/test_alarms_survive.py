"""Incidents of real processes: schedulers and a worker are killed, and each kind is opened once and closed once."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from typing import Any

from duly.model import Alerts, JobRequest, Policy
from duly.operations import Operations
from duly.store.pool import Pool
from harness.endpoint import Endpoint, reply
from harness.processes import Spawn
from harness.waiting import eventually

KINDS = {"late", "overrun", "not_finished_by", "failures_in_row", "no_success_for"}


def alerting(handler: str, payload: dict[str, Any], *, alerts: dict[str, Any], **more: Any) -> JobRequest:
    fields = {name: more.pop(name) for name in ("queue", "schedule", "name") if name in more}
    return JobRequest(handler, payload=payload, policy=Policy(alerts=Alerts(alerts), **more), **fields)


async def test_each_kind_is_opened_and_closed_once_through_kills_of_schedulers_and_a_worker(
    pool: Pool, operations: Operations, spawn: Spawn
) -> None:
    now = pool.clock.now()
    past = now - timedelta(minutes=2)
    by = f"{now - timedelta(minutes=1):%H:%M}"
    slow = {"seconds": 600, "again": 0}
    requests = [
        # No worker takes the queue `later` yet.
        alerting("record", {}, alerts={"late_seconds": 1}, queue="later"),
        alerting("record", {}, alerts={"no_success_for": 6}, queue="later", schedule="every 2s"),
        alerting("record", {}, alerts={"not_finished_by": by}, queue="later", schedule=past),
        alerting("hold", slow, alerts={"overrun_seconds": 1}, retry_delay_seconds=1),
        alerting("hold", slow, alerts={"failures_in_row": 1}, timeout_seconds=1, retry_delay_seconds=3600),
    ]
    async with Endpoint.serving() as receiver:
        settings = {
            "DULY_INCIDENT_WEBHOOK_URL": receiver.on("/hook", reply(204)),
            "DULY_INCIDENT_GATHER_SECONDS": "1",
        }
        scheduler, worker = spawn("scheduler", settings=settings), spawn("worker")
        await operations.submit_many(requests, allow_unknown_handler=True)

        async def opened(least: int) -> bool:
            return len(await pool.query("select from duly.incidents")) >= least

        # The scheduler dies between opening and sending, or just after it.
        await eventually(lambda: opened(3), seconds=60)
        scheduler.kill()
        scheduler = spawn("scheduler", settings=settings)

        def told(event: str) -> Counter[str]:
            documents = {call.headers["webhook-id"]: json.loads(call.body) for call in receiver.calls}
            return Counter(
                one["incident_id"]
                for document in documents.values()
                for one in document["data"]["incidents"]
                if document["type"] == f"incident.{event}"
            )

        await eventually(lambda: len(told("opened")) == len(KINDS), seconds=60)
        worker.kill()
        scheduler.kill()
        spawn("scheduler", settings=settings)
        # Now, and not in an hour, the failed attempt is repeated.
        await pool.query("update duly.runs set run_at = duly.now() where state = 'retrying'")
        spawn("worker", "--queue", "default", "--queue", "later")
        await eventually(lambda: len(told("closed")) == len(KINDS), seconds=60)
        found = await pool.query("select incident_id::text as id, kind, closed_at from duly.incidents")
        assert Counter(row["kind"] for row in found) == Counter(KINDS)
        assert None not in {row["closed_at"] for row in found}
        once = Counter(row["id"] for row in found)
        assert (told("opened"), told("closed")) == (once, once)
