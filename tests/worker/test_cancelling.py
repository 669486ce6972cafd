"""Cancelling a run: how soon its handler is stopped, and a handler that ignores it."""

from __future__ import annotations

import asyncio

import pytest

from duly import Context
from duly.config import Settings
from harness.store import count
from harness.worker import Workbench, wait_idle


async def test_a_waiting_run_ends_at_once(bench: Workbench) -> None:
    @bench.app.task()
    async def never() -> None:
        raise AssertionError("the run was cancelled before it began")

    job_id = await bench.submit(never)
    run = await bench.operations.runs.cancel((await bench.run_of(job_id)).run_id)
    assert run.status == "cancelled"
    async with bench.working() as worker:
        await wait_idle(worker)
    assert (await bench.operations.jobs.get(job_id)).status == "completed"


async def test_a_running_one_is_told_within_a_second(bench: Workbench) -> None:
    began = asyncio.Event()
    told_after: list[float] = []
    loop = asyncio.get_running_loop()

    @bench.app.task()
    async def slow(ctx: Context) -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            told_after.append(loop.time())
            assert ctx.cancelled

    job_id = await bench.submit(slow)
    async with bench.working():
        await began.wait()
        asked = loop.time()
        assert (await bench.operations.runs.cancel((await bench.run_of(job_id)).run_id)).status == "running"
        run = await bench.end_of(job_id, "cancelled")
    assert told_after[0] - asked < 1
    assert run.error is not None
    assert run.error.type == "Cancelled"
    assert await count(bench.pool, "dead_letters") == 0


async def test_without_notifications_it_is_told_within_a_second_as_well(bench: Workbench, settings: Settings) -> None:
    bench.settings = settings.model_copy(
        update={"notifications": False, "worker_lease_seconds": 15.0, "heartbeat_seconds": None}
    )
    began = asyncio.Event()
    told: list[float] = []
    loop = asyncio.get_running_loop()

    @bench.app.task()
    async def slow() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            told.append(loop.time())

    job_id = await bench.submit(slow)
    async with bench.working():
        await began.wait()
        asked = loop.time()
        await bench.operations.runs.cancel((await bench.run_of(job_id)).run_id)
        await bench.end_of(job_id, "cancelled")
    assert told[0] - asked < 1.5


async def test_a_handler_that_ignores_it_is_given_up(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duly.worker.executor.ABANDON_SECONDS", 0.2)
    began, end = asyncio.Event(), asyncio.Event()

    @bench.app.task(timeout_seconds=0.2, max_retries=0)
    async def stubborn() -> None:
        began.set()
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue

    job_id = await bench.submit(stubborn)
    async with bench.working():
        run = await bench.end_of(job_id, "dead")
        end.set()
    assert run.error is not None
    assert run.error.type == "timeout"
