"""Changes of existing jobs, and jobs that are parked because their zone is missing."""

from __future__ import annotations

import asyncio
import json
import shutil
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from duly.config import Settings
from duly.errors import Conflict, InvalidInput, InvalidSchedule, NotFound
from duly.maintenance.unparker import Unparker
from duly.model import Job, JobRequest, Policy
from duly.operations import Operations, StoreOperations
from duly.store import jobs as jobs_store
from duly.store import runs
from duly.store.jobs import ChangedJob, NewJob
from duly.store.pool import Pool, Querier
from duly.timing import forget_zones
from harness.scheduler import DAY, HOUR, MINUTE, SECOND, START, FrozenScheduler, moments
from harness.store import count, due_job, succeeded, take

PARALLEL = '{"overlap":"parallel"}'


@pytest.fixture
async def scheduler(pool: Pool) -> FrozenScheduler:
    scheduler = FrozenScheduler(pool)
    await scheduler.at(START)
    return scheduler


@pytest.fixture
async def minutely(scheduler: FrozenScheduler, pool: Pool) -> NewJob:
    job = due_job(pool, START + MINUTE, kind="cron", schedule="* * * * *", policy=PARALLEL)
    await scheduler.put(job)
    await scheduler.lead(job)
    return job


async def changes_of(pool: Pool, job: NewJob | Job) -> list[tuple[str, dict[str, Any]]]:
    rows = await pool.query(
        "select what, detail from duly.job_changes where job_id = $1 order by change_id", job.job_id
    )
    return [(row["what"], json.loads(row["detail"])) for row in rows]


class TestFields:
    async def test_every_field_that_a_client_may_set(
        self, scheduler: FrozenScheduler, operations: Operations, pool: Pool, minutely: NewJob
    ) -> None:
        changes = {
            "name": "another", "payload": {"a": [1]}, "payload_ref": "s3://bucket/key", "schedule": "0 9 * * MON",
            "timezone": "Europe/Berlin", "start_at": START + DAY, "end_at": START + 60 * DAY, "max_runs": 5,
            "queue": "reports", "priority": 9, "labels": {"team": "a"}, "missed_window": "SKIP",
            "catch_up_window_seconds": 60, "max_missed": 7, "overlap": "queue", "max_queued": 3, "max_retries": 1,
            "retry_backoff": "linear", "retry_delay_seconds": 5, "retry_max_delay_seconds": 50, "timeout_seconds": 9,
            "jitter_seconds": 0, "dst_gap": "skip", "dst_fold": "both", "idempotency_key_template": "{{name}}:{{date}}",
        }  # fmt: skip
        changed = await operations.jobs.change(str(minutely.job_id), changes)
        stored = await operations.jobs.get(str(minutely.job_id))
        assert stored == changed
        for field, value in changes.items():
            assert (getattr(stored, field) if hasattr(stored, field) else getattr(stored.policy, field)) == value
        assert stored.next_run_at == datetime(2030, 5, 13, 7, 0, tzinfo=UTC)
        assert (stored.version, stored.updated_at) == (2, START)
        ((what, detail),) = await changes_of(pool, minutely)
        assert what == "changed"
        assert detail["old"]["schedule"] == "* * * * *"
        assert detail["old"]["timezone"] == "UTC"
        assert detail["old"]["overlap"] == "parallel"
        assert "jitter_seconds" not in detail["old"]
        assert detail["before"]["schedule"] == "* * * * *"
        assert datetime.fromisoformat(detail["next_run_at"]) == START + MINUTE

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"job_id": "x"}, "job_id"),
            ({"tenant": "other"}, "tenant"),
            ({"status": "paused"}, "status"),
            ({"next_run_at": START}, "next_run_at"),
            ({"colour": "red"}, "colour"),
            ({"name": ""}, "name"),
            ({"payload": {"a": "\x00"}}, "payload"),
            ({"schedule": "77 * * * *"}, "schedule"),
            ({"schedule": "0 0 30 2 *"}, "schedule"),
            ({"timezone": "Mars/Olympus"}, "timezone"),
            ({"start_at": "tomorrow"}, "start_at"),
            ({"end_at": START - DAY}, "schedule"),
            ({"start_at": START + DAY, "end_at": START + HOUR}, "end_at"),
            ({"max_runs": 0}, "max_runs"),
            ({"queue": ""}, "queue"),
            ({"priority": 10}, "priority"),
            ({"labels": [1]}, "labels"),
            ({"overlap": "never"}, "overlap"),
            ({"max_missed": True}, "max_missed"),
            ({"timeout_seconds": 0}, "timeout_seconds"),
        ],
    )
    async def test_what_is_wrong_is_refused_by_its_name_and_nothing_changes(
        self, operations: Operations, pool: Pool, minutely: NewJob, changes: dict[str, Any], field: str
    ) -> None:
        before = await operations.jobs.get(str(minutely.job_id))
        with pytest.raises(InvalidInput) as caught:
            await operations.jobs.change(str(minutely.job_id), {"queue": "reports"} | changes)
        assert caught.value.field == field
        assert await operations.jobs.get(str(minutely.job_id)) == before
        assert await changes_of(pool, minutely) == []

    async def test_what_changes_nothing_writes_nothing(
        self, operations: Operations, pool: Pool, minutely: NewJob
    ) -> None:
        for changes in ({}, {"name": "test"}, {"schedule": "*  * * * *"}, {"timezone": "UTC", "priority": 5}):
            assert (await operations.jobs.change(str(minutely.job_id), changes)).version == 1
        assert await changes_of(pool, minutely) == []

    async def test_another_tenants_job_is_not_there(
        self, operations: Operations, store_operations: StoreOperations, minutely: NewJob
    ) -> None:
        with pytest.raises(NotFound):
            await store_operations.for_tenant("other").jobs.change(str(minutely.job_id), {"name": "x"})
        with pytest.raises(NotFound):
            await operations.jobs.change(str(uuid4()), {"name": "x"})

    async def test_queued_runs_follow_to_another_queue_and_priority(
        self, scheduler: FrozenScheduler, operations: Operations, pool: Pool, minutely: NewJob
    ) -> None:
        await scheduler.step(START + MINUTE)
        assert len((await take(pool, queues=("reports",))).runs) == 0
        await operations.jobs.change(str(minutely.job_id), {"queue": "reports", "priority": 1})
        assert await count(pool, "runs", "queue = 'reports' and priority = 1") == 1
        assert len((await take(pool, queues=("reports",))).runs) == 1
        assert (await operations.jobs.get(str(minutely.job_id))).next_run_at == START + 2 * MINUTE


class TestPlanning:
    async def test_a_changed_schedule_goes_on_with_its_next_future_occurrence(
        self, scheduler: FrozenScheduler, operations: Operations, minutely: NewJob
    ) -> None:
        await scheduler.step(START + MINUTE)
        changed = await operations.jobs.change(str(minutely.job_id), {"schedule": "*/5 * * * *"})
        assert changed.next_run_at == START + 5 * MINUTE
        for n in range(2, 11):
            await scheduler.step(START + n * MINUTE)
        assert await scheduler.runs(minutely) == [START + MINUTE, START + 5 * MINUTE, START + 10 * MINUTE]

    async def test_a_field_that_is_no_timing_leaves_the_plan_alone_even_when_overdue(
        self, scheduler: FrozenScheduler, operations: Operations, minutely: NewJob
    ) -> None:
        await scheduler.at(START + HOUR + 30 * SECOND)
        changed = await operations.jobs.change(str(minutely.job_id), {"payload": {"a": 1}, "max_retries": 9})
        assert changed.next_run_at == START + MINUTE
        await scheduler.step(START + HOUR + 30 * SECOND)
        assert await scheduler.late(minutely) == [START + HOUR]

    @pytest.mark.parametrize(
        "changes",
        [
            {"schedule": "* * * * * *"},
            {"timezone": "Asia/Kathmandu"},
            {"start_at": START - DAY},
            {"schedule": "every 1s", "missed_window": "RUN_ALL", "overlap": "parallel"},
        ],
    )
    async def test_an_edit_while_overdue_causes_no_burst_and_every_occurrence_is_accounted_for(
        self, scheduler: FrozenScheduler, operations: Operations, minutely: NewJob, changes: dict[str, Any]
    ) -> None:
        now = START + 26 * HOUR + 30 * SECOND
        await scheduler.at(now)
        changed = await operations.jobs.change(str(minutely.job_id), changes)
        assert changed.next_run_at is not None
        assert changed.next_run_at > now
        assert await scheduler.missed(minutely) == {"changed": 1560}
        await scheduler.step(now)
        assert await scheduler.runs(minutely) == []
        await scheduler.step(changed.next_run_at)
        assert await scheduler.runs(minutely) == [changed.next_run_at]

    async def test_the_new_schedule_begins_after_the_edit_even_if_an_occurrence_is_a_little_late(
        self, scheduler: FrozenScheduler, operations: Operations, minutely: NewJob
    ) -> None:
        """Moments of the new schedule between the late occurrence and the edit do not fire: it was not in force yet."""
        now = START + MINUTE + 3 * SECOND
        await scheduler.at(now)
        changed = await operations.jobs.change(str(minutely.job_id), {"schedule": "*/2 * * * * *"})
        assert changed.next_run_at == now + SECOND
        assert await scheduler.missed(minutely) == {"changed": 1}
        await scheduler.step(now + SECOND)
        assert await scheduler.runs(minutely) == [now + SECOND]

    async def test_what_waits_in_a_governed_catch_up_is_given_up_with_the_old_schedule(
        self, pool: Pool, operations: Operations
    ) -> None:
        scheduler = FrozenScheduler(pool, per_second=5)
        await scheduler.at(START)
        policy = '{"missed_window":"RUN_ALL","overlap":"parallel"}'
        job = due_job(pool, START + HOUR, start_at=START, policy=policy)
        await scheduler.put(job)
        await scheduler.lead(job)
        await scheduler.step(START + 20 * HOUR + MINUTE)
        await operations.jobs.change(str(job.job_id), {"schedule": "every 1s"})
        assert await scheduler.missed(job) == {"changed": 15}
        await scheduler.step(START + 20 * HOUR + MINUTE)
        assert await scheduler.late(job) == moments(START + HOUR, HOUR, 5)

    async def test_next_run_at_never_goes_back_to_what_has_fired(
        self, scheduler: FrozenScheduler, operations: Operations, pool: Pool, minutely: NewJob
    ) -> None:
        await scheduler.step(START + MINUTE)
        # A node whose clock is behind plans a change.
        scheduler.clock.moment = START
        changed = await operations.jobs.change(str(minutely.job_id), {"schedule": "*/1 * * * *", "dst_fold": "both"})
        assert changed.next_run_at == START + 2 * MINUTE
        changed = await operations.jobs.change(str(minutely.job_id), {"schedule": START + 30 * SECOND})
        assert changed.next_run_at is not None
        assert changed.kind == "once"

    async def test_an_interval_keeps_its_anchor_unless_its_start_changes(
        self, scheduler: FrozenScheduler, operations: Operations, pool: Pool
    ) -> None:
        job = due_job(pool, START + 10 * MINUTE, schedule="every 10m")
        await scheduler.put(job)
        await scheduler.at(START + 7 * MINUTE)
        changed = await operations.jobs.change(str(job.job_id), {"schedule": "every 4m"})
        assert changed.next_run_at == START + 8 * MINUTE
        changed = await operations.jobs.change(str(job.job_id), {"start_at": START + 9 * MINUTE})
        assert changed.next_run_at == START + 9 * MINUTE
        changed = await operations.jobs.change(str(job.job_id), {"start_at": None})
        assert changed.next_run_at == START + 8 * MINUTE

    async def test_a_one_off_is_moved(self, scheduler: FrozenScheduler, operations: Operations, pool: Pool) -> None:
        job = due_job(pool, START + MINUTE, kind="once", schedule="2030-05-05T12:01:00Z")
        await scheduler.put(job)
        await scheduler.lead(job)
        await scheduler.at(START + HOUR)
        changed = await operations.jobs.change(str(job.job_id), {"schedule": START + 2 * HOUR})
        assert changed.next_run_at == START + 2 * HOUR
        await scheduler.step(START + HOUR)
        assert await scheduler.runs(job) == []
        await scheduler.step(START + 2 * HOUR)
        assert await scheduler.runs(job, "flags & 2 = 0") == [START + 2 * HOUR]
        assert await scheduler.missed(job) == {}

    async def test_a_recurring_job_can_become_a_last_one(
        self, scheduler: FrozenScheduler, operations: Operations, minutely: NewJob
    ) -> None:
        await scheduler.step(START + MINUTE)
        await scheduler.at(START + MINUTE + SECOND)
        changed = await operations.jobs.change(str(minutely.job_id), {"schedule": "now"})
        assert (changed.kind, changed.next_run_at) == ("once", START + MINUTE + SECOND)
        await scheduler.step(START + MINUTE + SECOND)
        assert await scheduler.runs(minutely) == [START + MINUTE, START + MINUTE + SECOND]
        assert (await scheduler.job(minutely))["status"] == "ended"

    async def test_max_runs_must_leave_a_run(
        self, scheduler: FrozenScheduler, operations: Operations, minutely: NewJob
    ) -> None:
        await scheduler.step(START + MINUTE)
        await scheduler.step(START + 2 * MINUTE)
        with pytest.raises(InvalidInput, match="max_runs"):
            await operations.jobs.change(str(minutely.job_id), {"max_runs": 2})
        await operations.jobs.change(str(minutely.job_id), {"max_runs": 3})
        for n in range(3, 6):
            await scheduler.step(START + n * MINUTE)
        assert len(await scheduler.runs(minutely)) == 3

    async def test_leaders_hear_of_it(
        self, scheduler: FrozenScheduler, operations: Operations, pool: Pool, minutely: NewJob
    ) -> None:
        heard: asyncio.Queue[str] = asyncio.Queue()
        connection = await asyncpg.connect(pool.url)
        try:
            await connection.add_listener("duly_due", lambda *args: heard.put_nowait(args[3]))
            await operations.jobs.change(str(minutely.job_id), {"schedule": "* * * * * *"})
            async with asyncio.timeout(10):
                payload = await heard.get()
        finally:
            await connection.close()
        scheduler.loader.heard(payload)
        await scheduler.step(START + SECOND, read=False)
        assert await scheduler.runs(minutely) == [START + SECOND]


class TestStates:
    async def test_a_paused_job_has_nothing_planned_and_does_not_fire(
        self, scheduler: FrozenScheduler, operations: Operations, minutely: NewJob
    ) -> None:
        paused = await operations.jobs.pause(str(minutely.job_id))
        assert (paused.status, paused.next_run_at) == ("paused", None)
        await scheduler.step(START + 5 * MINUTE)
        assert await scheduler.runs(minutely) == []

    async def test_a_paused_job_stays_paused_and_resumes_with_the_new_schedule(
        self, scheduler: FrozenScheduler, operations: Operations, minutely: NewJob
    ) -> None:
        await operations.jobs.pause(str(minutely.job_id), reason="holidays")
        changed = await operations.jobs.change(str(minutely.job_id), {"schedule": "0 * * * *"})
        assert (changed.status, changed.next_run_at, changed.status_reason) == ("paused", None, "holidays")
        await scheduler.at(START + 90 * MINUTE)
        resumed = await operations.jobs.resume(str(minutely.job_id))
        assert resumed.next_run_at == START + 2 * HOUR
        assert await scheduler.missed(minutely) == {}

    async def test_what_is_over_cannot_be_changed(
        self, scheduler: FrozenScheduler, operations: Operations, pool: Pool, minutely: NewJob
    ) -> None:
        await operations.jobs.cancel(str(minutely.job_id))
        with pytest.raises(Conflict, match="cancelled"):
            await operations.jobs.change(str(minutely.job_id), {"name": "x"})
        once = due_job(pool, START + MINUTE, kind="once", schedule="2030-05-05T12:01:00Z")
        await scheduler.put(once)
        await scheduler.lead(once)
        await scheduler.step(START + MINUTE)
        # Its run was fired: the schedule can no longer change, but other fields can.
        assert (await operations.jobs.change(str(once.job_id), {"priority": 8})).priority == 8
        with pytest.raises(Conflict, match="planned anew"):
            await operations.jobs.change(str(once.job_id), {"schedule": START + DAY})
        for run in (await take(pool)).runs:
            await runs.complete(pool, [succeeded(run)])
        with pytest.raises(Conflict, match="completed"):
            await operations.jobs.change(str(once.job_id), {"name": "x"})

    async def test_the_version_decides_who_was_first(self, operations: Operations, minutely: NewJob) -> None:
        job_id = str(minutely.job_id)
        assert (await operations.jobs.change(job_id, {"name": "one"}, expected_version=1)).version == 2
        with pytest.raises(Conflict, match="version 2"):
            await operations.jobs.change(job_id, {"name": "two"}, expected_version=1)
        assert (await operations.jobs.get(job_id)).name == "one"

    async def test_changes_of_different_fields_at_once_are_all_kept(
        self, operations: Operations, minutely: NewJob
    ) -> None:
        changes: list[dict[str, Any]] = [
            {"name": "one"}, {"priority": 8}, {"queue": "q"}, {"max_runs": 4}, {"timezone": "Asia/Tokyo"},
        ]  # fmt: skip
        await asyncio.gather(*(operations.jobs.change(str(minutely.job_id), change) for change in changes))
        job = await operations.jobs.get(str(minutely.job_id))
        assert (job.name, job.priority, job.queue, job.max_runs, job.timezone) == ("one", 8, "q", 4, "Asia/Tokyo")
        assert job.version == 6

    async def test_a_fire_at_the_moment_of_a_change_is_neither_lost_nor_repeated(
        self, scheduler: FrozenScheduler, operations: Operations, minutely: NewJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = jobs_store.change

        async def slowly(store: Querier, changed: ChangedJob) -> Job | None:
            await scheduler.step(START + MINUTE)
            return await real(store, changed)

        monkeypatch.setattr(jobs_store, "change", slowly)
        changed = await operations.jobs.change(str(minutely.job_id), {"schedule": "*/1 * * * *", "dst_gap": "skip"})
        assert changed.next_run_at == START + MINUTE
        assert await scheduler.runs(minutely) == []
        await scheduler.step(START + MINUTE + SECOND, read=False)
        assert await scheduler.runs(minutely) == [START + MINUTE]
        assert (await scheduler.job(minutely))["next_run_at"] == START + 2 * MINUTE

    async def test_a_submit_sent_again_still_finds_a_job_that_was_changed(
        self, scheduler: FrozenScheduler, operations: Operations
    ) -> None:
        request = JobRequest("noop", schedule="every 1h", dedupe_key="k", policy=Policy(max_retries=1))
        first = await operations.submit(request, allow_unknown_handler=True)
        await operations.jobs.change(str(first.job_id), {"max_retries": 2})
        again = await operations.submit(request, allow_unknown_handler=True)
        assert (again.job_id, again.created) == (first.job_id, False)


class Zones:
    """A time zone of the test's own, which can be taken away."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "Atlantis" / "Main"
        self.file.parent.mkdir(parents=True)
        self._source = (
            next(path for base in zoneinfo.TZPATH if (path := Path(base) / "America" / "New_York").exists())
            if zoneinfo.TZPATH
            else None
        )

    def bring(self) -> None:
        if self._source is not None:
            shutil.copy(self._source, self.file)
        else:
            import importlib.resources as resources

            data = resources.files("tzdata.zoneinfo.America").joinpath("New_York").read_bytes()
            self.file.write_bytes(data)

    def take_away(self) -> None:
        self.file.unlink()
        forget_zones()


@pytest.fixture
def zones(tmp_path: Path) -> Iterator[Zones]:
    before = zoneinfo.TZPATH
    zones = Zones(tmp_path)
    zones.bring()
    zoneinfo.reset_tzpath([str(tmp_path), *before])
    yield zones
    zoneinfo.reset_tzpath(before)
    forget_zones()


class TestParked:
    @pytest.fixture
    async def parked(self, scheduler: FrozenScheduler, pool: Pool, zones: Zones) -> NewJob:
        """A job that was parked because its zone was missing when it was due."""
        job = due_job(
            pool, START + MINUTE, kind="cron", schedule="* * * * *", timezone="Atlantis/Main", policy=PARALLEL
        )
        await scheduler.put(job)
        await scheduler.lead(job)
        zones.take_away()
        await scheduler.step(START + MINUTE)
        return job

    @pytest.fixture
    def unparker(self, pool: Pool) -> Unparker:
        unparker = Unparker(pool)
        unparker.lead(True)
        return unparker

    async def test_it_stands_still_with_its_reason_and_goes_on_when_the_zone_is_back(
        self, scheduler: FrozenScheduler, pool: Pool, zones: Zones, parked: NewJob, unparker: Unparker
    ) -> None:
        row = await scheduler.job(parked)
        assert (row["status"], row["next_run_at"]) == ("paused", None)
        assert row["status_reason"].startswith("cannot be planned: timezone")
        await unparker.run_once()
        assert (await scheduler.job(parked))["status"] == "paused"
        zones.bring()
        await scheduler.at(START + HOUR + SECOND)
        await unparker.run_once()
        row = await scheduler.job(parked)
        assert (row["status"], row["status_reason"]) == ("active", None)
        assert row["next_run_at"] == START + HOUR + MINUTE
        assert await count(pool, "parked") == 0
        assert [what for what, _ in await changes_of(pool, parked)] == ["parked", "unparked"]
        await scheduler.step(START + HOUR + MINUTE)
        assert await scheduler.runs(parked) == [START + HOUR + MINUTE]
        assert await scheduler.missed(parked) == {}

    async def test_resuming_it_tries_at_once_and_says_what_is_still_missing(
        self, operations: Operations, scheduler: FrozenScheduler, zones: Zones, parked: NewJob, unparker: Unparker,
        pool: Pool,
    ) -> None:  # fmt: skip
        with pytest.raises(Conflict, match="Atlantis/Main"):
            await operations.jobs.resume(str(parked.job_id))
        zones.bring()
        resumed = await operations.jobs.resume(str(parked.job_id))
        assert (resumed.status, resumed.next_run_at) == ("active", START + 2 * MINUTE)
        # A person pauses the job afterwards; the unparker must not undo that.
        await operations.jobs.pause(str(parked.job_id))
        await unparker.run_once()
        assert (await scheduler.job(parked))["status"] == "paused"
        assert await count(pool, "parked") == 0

    async def test_a_person_who_pauses_it_keeps_it_paused(
        self, operations: Operations, scheduler: FrozenScheduler, zones: Zones, parked: NewJob, unparker: Unparker
    ) -> None:
        paused = await operations.jobs.pause(str(parked.job_id), reason="enough")
        assert paused.status_reason == "enough"
        zones.bring()
        await unparker.run_once()
        assert (await scheduler.job(parked))["status"] == "paused"

    async def test_it_goes_on_when_it_is_given_another_zone(
        self, operations: Operations, scheduler: FrozenScheduler, parked: NewJob, unparker: Unparker
    ) -> None:
        changed = await operations.jobs.change(str(parked.job_id), {"timezone": "Europe/Berlin"})
        assert changed.status == "paused"
        await unparker.run_once()
        row = await scheduler.job(parked)
        assert (row["status"], row["next_run_at"]) == ("active", START + 2 * MINUTE)

    async def test_a_one_off_that_was_parked_fires_when_the_zone_is_back(
        self, scheduler: FrozenScheduler, pool: Pool, zones: Zones, unparker: Unparker
    ) -> None:
        job = due_job(pool, START + MINUTE, kind="once", schedule="2030-05-05T08:01:00", timezone="Atlantis/Main")
        await scheduler.put(job)
        await scheduler.lead(job)
        zones.take_away()
        await scheduler.step(START + MINUTE)
        assert (await scheduler.job(job))["status"] == "paused"
        zones.bring()
        await scheduler.at(START + 3 * DAY)
        await unparker.run_once()
        await scheduler.step(START + 3 * DAY)
        assert len(await scheduler.runs(job)) == 1

    async def test_only_the_leader_looks_and_a_thousand_are_resumed_in_pages(
        self, scheduler: FrozenScheduler, pool: Pool, zones: Zones, unparker: Unparker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from duly.maintenance import unparker as module
        from harness.scheduler import same_shard

        monkeypatch.setattr(module, "PAGE", 40)
        jobs = same_shard(
            pool, 100, START + MINUTE, kind="cron", schedule="* * * * *", timezone="Atlantis/Main", policy=PARALLEL
        )
        fine = same_shard(pool, 1, START + MINUTE, kind="cron", schedule="* * * * *")[0]._replace(shard=jobs[0].shard)
        await scheduler.put(*jobs, fine)
        await scheduler.lead(*jobs)
        zones.take_away()
        await scheduler.step(START + MINUTE)
        assert await count(pool, "parked") == 100
        assert await scheduler.runs(fine) == [START + MINUTE]
        zones.bring()
        unparker.lead(False)
        await unparker.run_once()
        assert await count(pool, "parked") == 100
        unparker.lead(True)
        await unparker.run_once()
        assert await count(pool, "jobs", "next_run_at = $1", START + 2 * MINUTE) == 101


async def test_settings_say_how_late_runs_are_governed(settings: Settings) -> None:
    assert (settings.catch_up_window_seconds, settings.catch_up_per_second) == (None, 1000)
    assert timedelta(seconds=settings.misfire_grace_seconds) == 10 * SECOND


async def test_a_schedule_that_can_never_fire_again_is_refused(
    scheduler: FrozenScheduler, operations: Operations, minutely: NewJob
) -> None:
    with pytest.raises(InvalidSchedule):
        await operations.jobs.change(str(minutely.job_id), {"end_at": START + 30 * SECOND})
