"""Deploys that change a declared job at any moment of its life: overdue, firing, retrying, parked."""

from __future__ import annotations

import asyncio
import json
import shutil
import zoneinfo
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from duly.config import Settings
from duly.maintenance.unparker import Unparker
from duly.model import DEFAULT_TENANT, Claim, ClaimedRun, Job, JobRequest, Policy, Requeued
from duly.operations import Operations, StoreOperations
from duly.store import runs
from duly.store.pool import Pool, Querier
from duly.timing import forget_zones
from harness.held import HeldPool
from harness.scheduler import DAY, HOUR, MINUTE, SECOND, START, FrozenScheduler, moments
from harness.store import count, succeeded, take


@pytest.fixture
async def scheduler(pool: Pool) -> FrozenScheduler:
    scheduler = FrozenScheduler(pool)
    await scheduler.at(START)
    return scheduler


def declared(schedule: str = "0 13 * * *", **fields: Any) -> JobRequest:
    policy = Policy(**fields.pop("policy", {}))
    return JobRequest("digest", schedule=schedule, dedupe_key="declared:digest", policy=policy, **fields)


class Deployed:
    """The job that the code declares, led by the test's own scheduler."""

    def __init__(self, scheduler: FrozenScheduler, operations: Operations) -> None:
        self.scheduler = scheduler
        self.operations = operations
        self.job_id = UUID(int=0)

    async def deploy(self, request: JobRequest) -> Job:
        self.job_id = await self.operations.declare(request)
        job = await self.job()
        await self.scheduler.lead(job)  # type: ignore[arg-type]
        return job

    async def job(self) -> Job:
        return await self.operations.jobs.get(str(self.job_id))

    async def log(self) -> list[tuple[str, dict[str, Any]]]:
        rows = await self.scheduler.pool.query("select what, detail from duly.job_changes order by change_id")
        return [(row["what"], json.loads(row["detail"])) for row in rows]


@pytest.fixture
def code(scheduler: FrozenScheduler, operations: Operations) -> Deployed:
    return Deployed(scheduler, operations)


class TestOverdue:
    async def test_what_was_missed_is_made_up_for_when_the_deploy_changes_only_what_is_no_timing(
        self, scheduler: FrozenScheduler, code: Deployed
    ) -> None:
        await code.deploy(declared())
        await scheduler.at(START + HOUR + 10 * MINUTE)
        job = await code.deploy(declared(payload={"version": 2}, priority=7, policy={"max_retries": 9}))
        assert (job.next_run_at, job.payload, job.priority) == (START + HOUR, {"version": 2}, 7)
        await scheduler.step(START + HOUR + 10 * MINUTE)
        assert await scheduler.late() == [START + HOUR]
        ((what, detail),) = await code.log()
        assert what == "redefined"
        assert detail["old"] == {"payload": {}, "priority": 5, "max_retries": 3}
        assert "before" not in detail

    async def test_what_a_new_schedule_gives_up_is_recorded(self, scheduler: FrozenScheduler, code: Deployed) -> None:
        await code.deploy(declared("0 * * * *"))
        await scheduler.at(START + 3 * HOUR + MINUTE)
        job = await code.deploy(declared("30 * * * *"))
        assert job.next_run_at == START + 3 * HOUR + 30 * MINUTE
        assert await scheduler.missed() == {"changed": 3}
        await scheduler.step(START + 3 * HOUR + MINUTE)
        assert await scheduler.runs() == []

    async def test_another_spelling_of_the_schedule_changes_nothing(
        self, scheduler: FrozenScheduler, code: Deployed
    ) -> None:
        await code.deploy(declared("0 13 * * *"))
        await scheduler.at(START + HOUR + MINUTE)
        job = await code.deploy(declared("0  13 * * *"))
        assert (job.next_run_at, job.version) == (START + HOUR, 1)

    @pytest.mark.parametrize("schedule", ["every 1h", "every 2h"])
    async def test_a_governed_catch_up_stays_with_its_schedule(
        self, pool: Pool, operations: Operations, schedule: str
    ) -> None:
        scheduler = FrozenScheduler(pool, per_second=5)
        await scheduler.at(START)
        code = Deployed(scheduler, operations)
        policy = {"missed_window": "RUN_ALL", "overlap": "parallel"}
        await code.deploy(declared("every 1h", start_at=START, policy=policy))
        await scheduler.step(START + 20 * HOUR + MINUTE)
        assert len(await scheduler.late()) == 5
        await code.deploy(declared(schedule, start_at=START, policy=policy, payload={"version": 2}))
        for n in range(10):
            await scheduler.step(START + 20 * HOUR + MINUTE + n * SECOND)
        if schedule == "every 1h":
            assert await scheduler.late() == moments(START + HOUR, HOUR, 20)
            assert await scheduler.missed() == {}
        else:
            assert await scheduler.late() == moments(START + HOUR, HOUR, 5)
            assert await scheduler.missed() == {"changed": 15}


class TestInTheMiddleOfAFire:
    """The deploying process is held at each of its statements in turn, and meanwhile an occurrence falls due."""

    @pytest.fixture
    async def held(self, database_url: str, scheduler: FrozenScheduler) -> AsyncIterator[HeldPool]:
        pool = await HeldPool.connect(database_url, size=2)
        assert isinstance(pool, HeldPool)
        pool.clock = scheduler.clock
        yield pool
        await pool.close()

    @pytest.mark.parametrize("handler", ["has ended", "runs on"])
    @pytest.mark.parametrize("timing", ["unchanged", "changed"])
    async def test_no_occurrence_runs_twice_or_is_recorded_as_anything_else(
        self, held: HeldPool, settings: Settings, scheduler: FrozenScheduler, code: Deployed, handler: str, timing: str
    ) -> None:
        deploying = (await StoreOperations.open(held, settings)).for_tenant(DEFAULT_TENANT)
        await code.deploy(declared("* * * * *", payload={"version": 0}))
        begun: list[ClaimedRun] = []
        due = START
        held.meanwhile = lambda: self._fall_due(scheduler, due, handler, begun)
        for version in range(1, 40):
            # The occurrence falls due in the middle of the deploy, and is in the old and in the new schedule.
            due += 4 * MINUTE
            minute = f"*/{1 + version % 2}" if timing == "changed" else "*"
            for minutes in (3, 2, 1):
                await scheduler.step(due - minutes * MINUTE)
                await self._work(scheduler.pool, await take(scheduler.pool))
            await scheduler.at(due - SECOND)
            begun.clear()
            held.statements, held.hold_before = 0, version
            await deploying.declare(declared(f"{minute} * * * *", payload={"version": version}))
            if held.statements < version:
                break
            await scheduler.step(due + SECOND)  # a fire that found the job locked is tried again
            where = f"held before statement {version}"
            late = await take(scheduler.pool)
            if handler == "runs on" and begun:
                assert await runs.complete(scheduler.pool, [succeeded(run) for run in begun]) == len(begun), where
            await self._work(scheduler.pool, late)
            ran = [run.scheduled_at for run in [*begun, *late.runs]]
            rows = await scheduler.pool.query("select status from duly.history where scheduled_at = $1", due)
            told = [row["status"] for row in rows]
            # An occurrence that is overdue when the job is planned anew is given up and recorded as missed.
            assert (ran, told) == ([due], ["succeeded"]) or (timing, ran, told) == ("changed", [], ["missed"]), where
            assert (await code.job()).payload == {"version": version}
        assert version > 5, "the deploy was held before too few statements"
        assert await count(scheduler.pool, "history", "status = 'skipped'") == 0

    async def _fall_due(self, scheduler: FrozenScheduler, due: datetime, handler: str, begun: list[ClaimedRun]) -> None:
        await scheduler.step(due)
        claim = await take(scheduler.pool)
        begun.extend(claim.runs)
        if handler == "has ended":
            await self._work(scheduler.pool, claim)

    async def _work(self, pool: Pool, claim: Claim) -> None:
        if claim.runs:
            assert await runs.complete(pool, [succeeded(run) for run in claim.runs]) == len(claim.runs)

    async def test_a_whole_deploy_of_many_nodes_at_once_is_one_change(
        self, database_url: str, settings: Settings, scheduler: FrozenScheduler, code: Deployed
    ) -> None:
        await code.deploy(declared("* * * * *"))
        await asyncio.gather(*(code.operations.declare(declared("*/2 * * * *", priority=7)) for _ in range(10)))
        job = await code.job()
        assert (job.schedule, job.priority, job.version) == ("*/2 * * * *", 7, 2)
        assert [what for what, _ in await code.log()] == ["redefined"]


class TestRunsThatWait:
    async def test_a_run_that_waits_for_its_retry_follows_to_the_new_queue(
        self, scheduler: FrozenScheduler, pool: Pool, code: Deployed
    ) -> None:
        await code.deploy(declared("* * * * *", queue="a"))
        await scheduler.step(START + MINUTE)
        claim = await take(pool, queues=("a",))
        error = '{"type": "Failed", "message": "", "traceback": null}'
        await runs.requeue(pool, [Requeued(run, "retrying", 300.0, 1, 2, error) for run in claim.runs])
        await code.deploy(declared("* * * * *", queue="b", priority=7))
        assert await count(pool, "runs", "queue = 'b' and priority = 7 and state = 'retrying'") == 1
        await scheduler.at(START + HOUR)
        assert [run.attempt for run in (await take(pool, queues=("b",))).runs] == [2]

    async def test_a_run_that_comes_back_while_the_job_moves_follows_as_well(
        self, scheduler: FrozenScheduler, pool: Pool, code: Deployed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The run's way back began before it could see the change, so it is in the old queue after the change."""
        from duly.store import jobs

        await code.deploy(declared("* * * * *", queue="a"))
        await scheduler.step(START + MINUTE)
        change = jobs.change

        async def and_a_run_comes_back(store: Querier, changed: jobs.ChangedJob) -> Job | None:
            answer = await change(store, changed)
            await store.connection.execute("update duly.runs set queue = 'a'")  # type: ignore[attr-defined]
            return answer

        monkeypatch.setattr(jobs, "change", and_a_run_comes_back)
        await code.deploy(declared("* * * * *", queue="b"))
        assert await count(pool, "runs", "queue = 'b'") == 1


class TestStandingStill:
    @pytest.fixture
    def zones(self, tmp_path: Path) -> Iterator[Path]:
        folder = tmp_path / "zoneinfo"
        (folder / "Mars").mkdir(parents=True)
        found = next(Path(path) for path in zoneinfo.TZPATH if (Path(path) / "Asia" / "Tokyo").exists())
        shutil.copy(found / "Asia" / "Tokyo", folder / "Mars" / "Olympus")
        before = zoneinfo.TZPATH
        zoneinfo.reset_tzpath([str(folder), *before])
        forget_zones()
        yield folder
        zoneinfo.reset_tzpath(before)
        forget_zones()

    async def test_a_job_that_was_parked_goes_on_when_the_code_gives_it_another_zone(
        self, zones: Path, scheduler: FrozenScheduler, pool: Pool, code: Deployed
    ) -> None:
        await code.deploy(declared("* * * * *", timezone="Mars/Olympus"))
        (zones / "Mars" / "Olympus").unlink()
        forget_zones()
        await scheduler.step(START + MINUTE)
        assert (await code.job()).status == "paused"
        await code.deploy(declared("* * * * *", timezone="Asia/Tokyo"))
        unparker = Unparker(pool)
        unparker.lead(True)
        await unparker.run_once()
        job = await code.job()
        assert (job.status, job.next_run_at, job.timezone) == ("active", START + 2 * MINUTE, "Asia/Tokyo")
        assert await count(pool, "parked") == 0

    async def test_a_pause_and_a_cancellation_outlast_a_deploy(
        self, scheduler: FrozenScheduler, code: Deployed
    ) -> None:
        await code.deploy(declared("* * * * *"))
        await code.operations.jobs.pause(str(code.job_id), reason="mine")
        job = await code.deploy(declared("*/5 * * * *", max_runs=3))
        assert (job.status, job.status_reason, job.next_run_at) == ("paused", "mine", None)
        assert (await code.operations.jobs.resume(str(code.job_id))).next_run_at == START + 5 * MINUTE
        await code.operations.jobs.cancel(str(code.job_id))
        job = await code.deploy(declared("* * * * *"))
        assert (job.status, job.schedule, job.next_run_at) == ("cancelled", "*/5 * * * *", None)

    async def test_what_was_made_so_by_hand_is_agreed_to_without_a_change(
        self, scheduler: FrozenScheduler, code: Deployed
    ) -> None:
        await code.deploy(declared("* * * * *"))
        changed = await code.operations.jobs.change(str(code.job_id), {"priority": 9})
        assert await code.deploy(declared("* * * * *", priority=9)) == changed
        await code.operations.jobs.change(str(code.job_id), {"priority": 1})
        # The code declares nothing new, so the change by hand stays.
        assert (await code.deploy(declared("* * * * *", priority=9))).priority == 1


class TestOver:
    async def test_more_runs_and_a_later_end_let_it_go_on(self, scheduler: FrozenScheduler, code: Deployed) -> None:
        await code.deploy(declared("* * * * *", max_runs=1))
        await scheduler.step(START + MINUTE)
        assert (await code.job()).next_run_at is None
        job = await code.deploy(declared("* * * * *", max_runs=1, payload={"version": 2}))
        assert (job.next_run_at, job.payload) == (None, {"version": 2})
        job = await code.deploy(declared("* * * * *", max_runs=2))
        assert (job.status, job.next_run_at) == ("active", START + 2 * MINUTE)
        job = await code.deploy(declared("* * * * *", max_runs=1))
        assert job.next_run_at is None
        job = await code.deploy(declared("* * * * *", end_at=START + DAY))
        assert job.next_run_at == START + 2 * MINUTE

    async def test_a_one_off_that_has_run_does_so_again_only_at_a_later_time(
        self, scheduler: FrozenScheduler, code: Deployed
    ) -> None:
        await code.deploy(declared("2030-05-05T12:10:00Z"))
        await scheduler.step(START + 10 * MINUTE)
        job = await code.deploy(declared("2030-05-05T12:05:00Z"))
        assert (job.next_run_at, job.schedule) == (None, "2030-05-05T12:05:00Z")
        job = await code.deploy(declared("2030-05-05T12:30:00Z"))
        assert job.next_run_at == START + 30 * MINUTE
        for minute in (11, 30, 31):
            await scheduler.step(START + minute * MINUTE)
        assert await scheduler.runs() == [START + 10 * MINUTE]  # this run is still unfinished, and overlap is skip
        assert await count(scheduler.pool, "history", "status = 'skipped'") == 1

    async def test_another_handler_is_what_runs_from_then_on(self, scheduler: FrozenScheduler, code: Deployed) -> None:
        await code.deploy(declared("* * * * *"))
        target = {"type": "http", "url": "https://example.com/"}
        request = JobRequest(target, schedule="* * * * *", dedupe_key="declared:digest", name="digest")
        job = await code.deploy(request)
        assert isinstance(job.handler, dict)
        assert job.handler["url"] == "https://example.com/"
        assert (await code.deploy(declared("* * * * *"))).handler == "digest"
        assert [detail["old"] for _, detail in await code.log()] == [{"handler": "digest"}, {"handler": "http"}]
