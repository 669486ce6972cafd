"""A real Prometheus and Alertmanager watch a running cluster: each alert fires on its fault and resolves after it.

The rules are the product's, with every duration divided by 60. Faults that do not disturb each other are produced side
by side, and each lasts until its alert fires, so a slow machine only makes the test take longer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from duly import monitoring
from duly.operations import StoreOperations
from duly.store.pool import Pool
from harness.endpoint import Endpoint, reply
from harness.processes import Spawn
from harness.prometheus import AlertmanagerServer, PrometheusServer, hurried, watching
from harness.servers import free_port
from harness.store import due_job, put, put_now
from harness.waiting import eventually

ALERTS = {
    rule["alert"]
    for group in yaml.safe_load(monitoring.rules())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
# Seconds for a stage. On an idle machine the longest takes 25.
PATIENCE = 90.0
FAILING = {"DulyFailureRateHigh", "DulyFailureBudgetBurnsFast", "DulyFailureBudgetBurns", "DulyDeadLettersGrow"}
BUSY = {"DulyWorkersSaturated", "DulyQueueGrows"}
UNSERVED = {"DulyOldestRunWaits", "DulyJobsWithoutWorker"}
LATE = {"DulyStartLagHigh", "DulyStartLagBudgetBurnsFast", "DulyStartLagBudgetBurns"}
GONE = {"DulyNoLiveScheduler", "DulyShardsWithoutLeader", "DulyOldestJobDue", "DulyNoLiveWorker"}
AWAY = {"DulyApiAway"}


class Watcher:
    """What Alertmanager says, and what it has sent."""

    def __init__(self, prometheus: PrometheusServer, alertmanager: AlertmanagerServer, hook: Endpoint) -> None:
        self._prometheus = f"http://127.0.0.1:{prometheus.port}"
        self._alertmanager = f"http://127.0.0.1:{alertmanager.port}"
        self._hook = hook
        self.client = httpx.AsyncClient(timeout=10)
        self.began = time.monotonic()

    async def firing(self) -> dict[str, dict[str, Any]]:
        """The alerts that fire, by name; those that another one inhibits too."""
        answer = (await self.client.get(f"{self._alertmanager}/api/v2/alerts")).raise_for_status()
        return {alert["labels"]["alertname"]: alert for alert in answer.json()}

    async def until_fire(self, *alerts: Collection[str]) -> dict[str, dict[str, Any]]:
        wanted = set[str]().union(*alerts)
        found: dict[str, dict[str, Any]] = {}

        async def all_fire() -> bool:
            found.update(await self.firing())
            await asyncio.sleep(0.1)
            return wanted <= found.keys()

        await self._until(all_fire, f"fire: {sorted(wanted)}")
        return found

    async def until_silent(self, *alerts: Collection[str]) -> None:
        wanted = set[str]().union(*alerts)

        async def none_fires() -> bool:
            await asyncio.sleep(0.1)
            return wanted.isdisjoint(await self.firing())

        await self._until(none_fires, f"resolve: {sorted(wanted)}")

    async def until_scraped(self, targets: int) -> None:
        async def up() -> bool:
            answer = await self.client.get(f"{self._prometheus}/api/v1/query", params={"query": "sum(up)"})
            result = answer.raise_for_status().json()["data"]["result"]
            await asyncio.sleep(0.1)
            return bool(result) and float(result[0]["value"][1]) == targets

        await self._until(up, f"answer: {targets} targets")

    def sent(self) -> set[tuple[str, str]]:
        """Alertmanager's messages: (alert, firing or resolved)."""
        alerts = [alert for call in self._hook.calls for alert in json.loads(call.body)["alerts"]]
        return {(alert["labels"]["alertname"], alert["status"]) for alert in alerts}

    async def _until(self, holds: Callable[[], Awaitable[bool]], what: str) -> None:
        try:
            await eventually(holds, seconds=PATIENCE)
        except TimeoutError:
            pytest.fail(f"within {PATIENCE} s they did not {what}; firing: {sorted(await self.firing())}")
        print(f"{time.monotonic() - self.began:5.1f} s: {what}")


@asynccontextmanager
async def going_on(step: Callable[[], Awaitable[object]], every: float = 0.5) -> AsyncIterator[None]:
    """Repeats the step meanwhile."""

    async def repeat() -> None:
        while True:
            await step()
            await asyncio.sleep(every)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()


async def put_late(pool: Pool, count: int) -> None:
    """Runs of the queue `late` that have waited for two minutes."""
    jobs = await put_now(pool, count, queue="late", handler="record")
    ids = [job.job_id for job in jobs]
    early = "- interval '2 minutes' where job_id = any ($1)"
    await pool.query(f"update duly.runs set scheduled_at = scheduled_at {early}", ids)
    await pool.query(f"update duly.runs set run_at = run_at {early}", ids)
    await pool.query(f"update duly.jobs set last_run_at = last_run_at {early}", ids)


def test_hurrying_changes_durations_and_nothing_else() -> None:
    rules, quick = monitoring.rules(), hurried(monitoring.rules())
    assert "[5000ms]" in quick
    assert "for: 10000ms" in quick
    assert "[360000ms]" in quick
    left = [line for line in quick.splitlines() if line not in rules.splitlines()]
    assert all("ms]" in line or "for: " in line for line in left)
    assert not [line for line in quick.splitlines() if line.strip().startswith("for: ") and not line.endswith("ms")]


@pytest.mark.timeout(600)
async def test_each_alert_fires_on_its_fault_and_resolves_after_it(
    pool: Pool, store_operations: StoreOperations, spawn: Spawn, tmp_path: Path
) -> None:
    key = await store_operations.keys.create(role="monitor")
    ports = {name: free_port() for name in ("api", "scheduler", "worker", "slow", "late")}
    here = {name: [f"127.0.0.1:{port}"] for name, port in ports.items()}
    gate = tmp_path / "gate"

    def start(command: str, name: str, *arguments: str) -> Any:
        return spawn(command, *arguments, "--port" if name == "api" else "--health-port", str(ports[name]))

    async def succeed() -> None:
        await put_now(pool, 40, handler="record")

    async def fail() -> None:
        await put_now(pool, 30, handler="fail", policy='{"max_retries": 0}')

    async def crowd() -> None:
        await put_now(pool, 40, queue="slow", handler="wait_for_file", payload=json.dumps({"path": str(gate)}))

    with watching() as (prometheus, alertmanager):
        async with Endpoint.serving() as hook:
            alertmanager.configure(webhook=hook.on("/", reply(200)))
            prometheus.configure(
                {
                    "duly-api": here["api"],
                    "duly-scheduler": here["scheduler"],
                    "duly-worker": here["worker"] + here["late"],
                    "duly-worker-slow": here["slow"],
                },
                alertmanager=alertmanager.port,
                key=key.text,
            )
            api, scheduler = start("api", "api"), start("scheduler", "scheduler")
            workers = [
                start("worker", "worker", "--queue", "default"),
                start("worker", "slow", "--queue", "slow", "--concurrency", "4"),
            ]
            alertmanager.start()
            prometheus.start()
            watcher = Watcher(prometheus, alertmanager, hook)
            await watcher.until_scraped(4)
            async with going_on(succeed):
                await watcher.until_silent(ALERTS)

                await put_late(pool, 5)
                async with going_on(fail), going_on(crowd):
                    found = await watcher.until_fire(FAILING, BUSY, UNSERVED)
                # The fast one is enough: Alertmanager sends no message about the others.
                assert found["DulyFailureBudgetBurns"]["status"]["inhibitedBy"]
                gate.touch()
                workers.append(start("worker", "late", "--queue", "late"))
                async with going_on(lambda: put_late(pool, 5)):
                    await watcher.until_fire(LATE)
                await watcher.until_silent(BUSY, UNSERVED, {"DulyStartLagHigh", "DulyFailureRateHigh"})

            scheduler.kill()
            for worker in workers:
                worker.terminate()
            await put(pool, due_job(pool, pool.clock.now() - timedelta(minutes=1), handler="record"))
            found = await watcher.until_fire(GONE)
            assert found["DulyShardsWithoutLeader"]["status"]["inhibitedBy"]
            assert found["DulyOldestJobDue"]["status"]["inhibitedBy"]
            for process in (scheduler, *workers):
                process.wait()
            start("scheduler", "scheduler")
            start("worker", "worker", "--queue", "default")
            await watcher.until_silent(GONE)

            api.terminate()
            api.wait()
            await watcher.until_fire(AWAY)
            start("api", "api")
            async with going_on(succeed):
                await watcher.until_silent(ALERTS)
            await watcher.client.aclose()

            told = ALERTS - {"DulyFailureRateHigh", "DulyFailureBudgetBurns", "DulyStartLagBudgetBurns"}
            told -= {"DulyShardsWithoutLeader", "DulyOldestJobDue"}
            wanted = {(alert, status) for alert in told for status in ("firing", "resolved")}
            await eventually(lambda: wanted <= watcher.sent(), seconds=PATIENCE)
            assert FAILING | BUSY | UNSERVED | LATE | GONE | AWAY == ALERTS
