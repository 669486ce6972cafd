"""Time-zone data in the store: the release in force, the nodes that plan by it, and the plans when it changes."""

from __future__ import annotations

import asyncio
import json
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from duly.maintenance import zone_keeper
from duly.maintenance.zone_keeper import ZoneKeeper
from duly.model import JobRequest, Policy
from duly.operations import Operations
from duly.store import zones
from duly.store.pool import Pool
from duly.timing import changed_since, forget_zones, load_zone, machine_version, use_rules
from harness.scheduler import DAY, HOUR, MINUTE, FrozenScheduler
from harness.waiting import eventually
from timing.tzif import zone_file

ZONE, OTHER = "Europe/Kyiv", "Asia/Tashkent"
NOW = datetime(2030, 5, 5, 0, 0, tzinfo=UTC)
NINE = NOW.replace(hour=9)


class Machine:
    """This machine's time-zone data, in a folder of the test's own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def install(self, version: str, hours: float, *changes: tuple[datetime, float]) -> None:
        """Installs data for a process that begins now."""
        self.write(version, hours, *changes)
        forget_zones()

    def write(self, version: str, hours: float, *changes: tuple[datetime, float]) -> None:
        """Replaces the data under a process that goes on."""
        for name, data in {
            ZONE: zone_file(timedelta(hours=hours), [(at, timedelta(hours=new)) for at, new in changes]),
            OTHER: zone_file(timedelta(hours=5)),
            "UTC": zone_file(timedelta(0)),
        }.items():
            path = self._folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        (self._folder / "tzdata.zi").write_text(f"# version {version}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    folder = tmp_path / "zoneinfo"
    folder.mkdir()
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath([str(folder)])
    use_rules()
    yield Machine(folder)
    zoneinfo.reset_tzpath(before)
    use_rules()


@pytest.fixture
async def scheduler(pool: Pool) -> FrozenScheduler:
    scheduler = FrozenScheduler(pool, NOW)
    await scheduler.at(NOW)
    return scheduler


@pytest.fixture
async def keeper(pool: Pool) -> ZoneKeeper:
    keeper = ZoneKeeper(pool, first_seconds=0)
    keeper.lead(True)
    return keeper


async def put(operations: Operations, scheduler: FrozenScheduler, schedule: str, **fields: Any) -> str:
    request = JobRequest("noop", schedule=schedule, **{"timezone": ZONE, **fields})
    job_id = str((await operations.submit(request, allow_unknown_handler=True)).job_id)
    await scheduler.lead(await operations.jobs.get(job_id))  # type: ignore[arg-type]
    return job_id


async def runs_of(pool: Pool, job_id: str) -> list[datetime]:
    rows = await pool.query("select scheduled_at from duly.runs where job_id::text = $1 order by 1", job_id)
    return [row["scheduled_at"] for row in rows]


async def changes_of(pool: Pool, job_id: str) -> list[tuple[str, dict[str, Any]]]:
    rows = await pool.query(
        "select what, detail from duly.job_changes where job_id::text = $1 order by change_id", job_id
    )
    return [(row["what"], json.loads(row["detail"])) for row in rows]


class TestPlans:
    async def test_plans_go_where_new_data_puts_them_and_are_explained(
        self, machine: Machine, keeper: ZoneKeeper, scheduler: FrozenScheduler, operations: Operations, pool: Pool
    ) -> None:
        machine.install("2030a", 3)
        await keeper.run_once()
        daily = await put(operations, scheduler, "0 9 * * *")
        once = await put(operations, scheduler, "2030-05-05T09:00", policy=Policy(jitter_seconds=1))
        ruled = await put(
            operations, scheduler, f"DTSTART;TZID={ZONE}:20300505T090000\nRRULE:FREQ=DAILY", timezone="UTC"
        )
        elsewhere = await put(operations, scheduler, "0 9 * * *", timezone=OTHER)
        in_utc = await put(operations, scheduler, "0 9 * * *", timezone="UTC")
        paused = await put(operations, scheduler, "0 9 * * *")
        await operations.jobs.pause(paused)
        ids = (daily, once, ruled, elsewhere, in_utc)
        before = [(await operations.jobs.get(job_id)).next_run_at for job_id in ids]
        await scheduler.at(NOW + MINUTE)
        machine.install("2030b", 3, (NOW - HOUR, 2))
        await keeper.run_once()
        after = [(await operations.jobs.get(job_id)).next_run_at for job_id in ids]
        assert [new - old for old, new in zip(before, after, strict=True) if old and new] == [
            HOUR, HOUR, HOUR, timedelta(0), timedelta(0)
        ]  # fmt: skip
        assert await changes_of(pool, daily) == [
            ("rezoned", {
                "reason": "time-zone data 2030b", "next_run_at": "2030-05-05T06:00:00+00:00",
                "moved_to": "2030-05-05T07:00:00+00:00",
            })
        ]  # fmt: skip
        assert await changes_of(pool, elsewhere) == []
        await scheduler.step(NOW + DAY)
        assert [len(await runs_of(pool, job_id)) for job_id in ids] == [1, 1, 1, 1, 1]
        told = await operations.explain.occurrence(daily, at=NINE - 3 * HOUR)
        assert told.verdict == "changed"
        assert "2030b came into force and moved it to" in told.sentence
        past = await operations.explain.occurrence(daily, at=NINE - 2 * HOUR)
        assert past.verdict == "fired_late"

    async def test_a_fire_that_comes_first_puts_its_plan_right(
        self, machine: Machine, keeper: ZoneKeeper, scheduler: FrozenScheduler, operations: Operations, pool: Pool
    ) -> None:
        """The walk over all jobs has not come to the job; in this test it never does."""
        machine.install("2030a", 3)
        await keeper.run_once()
        job_id = await put(operations, scheduler, "0 9,10 * * *")
        await scheduler.at(NOW + MINUTE)
        machine.install("2030b", 3, (NOW - HOUR, 2))
        keeper._replan = lambda version: _nothing()  # type: ignore[method-assign]
        await keeper.run_once()
        for hour in range(25):
            await scheduler.step(NOW + hour * HOUR)
        assert await runs_of(pool, job_id) == [NINE - 2 * HOUR]  # at ten o'clock that run is unfinished
        moved = [detail["moved_to"] for what, detail in await changes_of(pool, job_id) if what == "rezoned"]
        assert moved == ["2030-05-05T07:00:00+00:00"]

    async def test_a_locked_job_does_not_hold_up_the_walk(
        self, machine: Machine, keeper: ZoneKeeper, scheduler: FrozenScheduler, operations: Operations, pool: Pool
    ) -> None:
        machine.install("2030a", 3)
        await keeper.run_once()
        locked, free = [await put(operations, scheduler, "0 9 * * *") for _ in range(2)]
        await scheduler.at(NOW + MINUTE)
        machine.install("2030b", 3, (NOW - HOUR, 2))
        stranger = await asyncpg.connect(pool.url)
        try:
            async with stranger.transaction():
                await stranger.fetch("select from duly.jobs where job_id::text = $1 for update", locked)
                async with asyncio.timeout(30):
                    await keeper.run_once()
        finally:
            await stranger.close()
        assert (await operations.jobs.get(free)).next_run_at == NINE - 2 * HOUR
        assert (await operations.jobs.get(locked)).next_run_at == NINE - 3 * HOUR
        await scheduler.step(NINE - 3 * HOUR)
        assert await runs_of(pool, locked) == []
        await scheduler.step(NINE - 2 * HOUR)
        assert await runs_of(pool, locked) == [NINE - 2 * HOUR]

    async def test_a_job_that_is_locked_for_a_moment_is_moved_all_the_same(
        self, machine: Machine, keeper: ZoneKeeper, scheduler: FrozenScheduler, operations: Operations, pool: Pool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        machine.install("2030a", 3)
        await keeper.run_once()
        job_id = await put(operations, scheduler, "0 9 * * *")
        await scheduler.at(NOW + MINUTE)
        machine.install("2030b", 3, (NOW - HOUR, 2))
        stranger = await asyncpg.connect(pool.url)
        await stranger.execute("begin")
        await stranger.execute("select from duly.jobs for update")
        move, tries = zones.move, 0

        async def until_the_first_has_failed(*args: Any) -> set[UUID]:
            nonlocal tries
            tries += 1
            moved = await move(*args)
            if tries == 1:
                await stranger.execute("commit")
            return moved

        monkeypatch.setattr(zones, "move", until_the_first_has_failed)
        try:
            await keeper.run_once()
        finally:
            await stranger.close()
        assert (await operations.jobs.get(job_id)).next_run_at == NINE - 2 * HOUR
        assert tries == 2

    async def test_a_plan_that_was_changed_since_it_was_looked_at_stays_where_it_was_put(
        self, machine: Machine, keeper: ZoneKeeper, scheduler: FrozenScheduler, operations: Operations, pool: Pool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        machine.install("2030a", 3)
        await keeper.run_once()
        job_id = await put(operations, scheduler, "0 9 * * *")
        await scheduler.at(NOW + MINUTE)
        machine.install("2030b", 3, (NOW - HOUR, 2))
        move = zones.move

        async def after_a_change(*args: Any) -> set[UUID]:
            # next_run_at is the same as before, but the row is a new version.
            await pool.query("update duly.jobs set schedule = '0 6 * * *', timezone = 'UTC', updated_at = duly.now()")
            return await move(*args)

        monkeypatch.setattr(zones, "move", after_a_change)
        await keeper.run_once()
        assert (await operations.jobs.get(job_id)).next_run_at == NINE - 3 * HOUR
        assert await changes_of(pool, job_id) == []

    async def test_the_walk_goes_from_page_to_page_and_tells_of_plans_that_came_nearer(
        self, machine: Machine, keeper: ZoneKeeper, scheduler: FrozenScheduler, operations: Operations, pool: Pool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(zone_keeper, "PAGE", 2)
        machine.install("2030a", 3)
        await keeper.run_once()
        ids = [await put(operations, scheduler, "0 9 * * *") for _ in range(5)]
        await scheduler.at(NINE - 4 * HOUR - 10 * MINUTE)
        machine.install("2030b", 3, (NOW - HOUR, 4))
        heard: list[tuple[str, str]] = []
        leader = await asyncpg.connect(pool.url)
        try:
            for channel in ("duly_due", "duly_zones", "mark"):
                await leader.add_listener(
                    channel, lambda _connection, _pid, told, said: heard.append((told, str(said)))
                )
            await keeper.run_once()
            await pool.query("select pg_notify('mark', '')")
            await eventually(lambda: ("mark", "") in heard)
        finally:
            await leader.close()
        assert {(await operations.jobs.get(job_id)).next_run_at for job_id in ids} == {NINE - 4 * HOUR}
        assert heard[0] == ("duly_zones", "2030b")
        assert [channel for channel, _ in heard[1:]] == [*["duly_due"] * 3, "mark"]
        assert all(any(job_id in said for _, said in heard) for job_id in ids)

    async def test_the_walk_goes_on_where_another_leader_left_it(
        self, machine: Machine, keeper: ZoneKeeper, scheduler: FrozenScheduler, operations: Operations, pool: Pool
    ) -> None:
        machine.install("2030a", 3)
        await keeper.run_once()
        first, second = [await put(operations, scheduler, "0 9 * * *") for _ in range(2)]
        await scheduler.at(NOW + MINUTE)
        machine.install("2030b", 3, (NOW - HOUR, 2))
        await keeper.run_once()
        await pool.query("update duly.jobs set next_run_at = $1, updated_at = $2", NINE - 3 * HOUR, NOW - HOUR)
        await pool.query(
            "update duly.zone_rules set finished_at = null, replanned = $1::text::uuid where version = '2030b'", first
        )
        other = ZoneKeeper(pool)
        other.lead(True)
        await other.run_once()
        assert (await operations.jobs.get(first)).next_run_at == NINE - 3 * HOUR
        assert (await operations.jobs.get(second)).next_run_at == NINE - 2 * HOUR
        assert [one.finished_at is not None for one in await zones.versions(pool)] == [True, True]


async def _nothing() -> None:
    pass


class TestVersions:
    async def test_nodes_with_different_data_do_not_fight(
        self, machine: Machine, keeper: ZoneKeeper, scheduler: FrozenScheduler, operations: Operations, pool: Pool
    ) -> None:
        machine.install("2030a", 3)
        await keeper.run_once()
        job_id = await put(operations, scheduler, "0 9 * * *")
        await scheduler.at(NOW + MINUTE)
        machine.install("2030b", 3, (NOW - HOUR, 2))
        await keeper.run_once()
        version = (await operations.jobs.get(job_id)).version
        # A node whose machine was not upgraded leads now: it plans by the data of the store.
        machine.install("2030a", 3)
        old = ZoneKeeper(pool, first_seconds=0)
        old.lead(True)
        for _ in range(3):
            await old.run_once()
            await keeper.run_once()
        assert load_zone(ZONE).utcoffset(NINE.replace(tzinfo=None)) == 2 * HOUR
        assert changed_since() is not None
        assert [one.version for one in await zones.versions(pool)] == ["2030b", "2030a"]
        assert (await operations.jobs.get(job_id)).version == version
        await scheduler.step(NINE - 2 * HOUR)
        assert await runs_of(pool, job_id) == [NINE - 2 * HOUR]
        assert (await operations.jobs.get(job_id)).next_run_at == NINE - 2 * HOUR + DAY

    async def test_only_a_leader_lets_data_come_into_force(self, machine: Machine, pool: Pool) -> None:
        machine.install("2030a", 3)
        await ZoneKeeper(pool, first_seconds=0).run_once()
        assert await zones.versions(pool) == []
        young = ZoneKeeper(pool)
        young.lead(True)
        wait = await young.run_once()
        assert wait is not None
        assert 0 < wait <= 60
        assert await zones.versions(pool) == []

    async def test_a_release_that_is_older_than_the_one_in_force_never_comes_into_force(
        self, machine: Machine, keeper: ZoneKeeper, pool: Pool
    ) -> None:
        machine.install("2030b", 2)
        await keeper.run_once()
        machine.install("2030a", 3)
        old = ZoneKeeper(pool, first_seconds=0)
        old.lead(True)
        await old.run_once()
        assert [one.version for one in await zones.versions(pool)] == ["2030b"]
        assert load_zone(ZONE).utcoffset(NINE.replace(tzinfo=None)) == 2 * HOUR

    async def test_who_was_slower_changes_nothing(self, machine: Machine, keeper: ZoneKeeper, pool: Pool) -> None:
        """For a moment there are two leaders, whose machines were upgraded to different releases."""
        machine.install("2030a", 3)
        await keeper.run_once()
        machine.install("2030c", 2)
        await keeper.run_once()
        assert not await zones.note(pool, version="2030b", data=b"", instead_of="2030a")
        assert [one.version for one in await zones.versions(pool)] == ["2030c", "2030a"]

    async def test_a_process_learns_of_its_machines_new_data_before_the_store_has_any(
        self, machine: Machine, pool: Pool
    ) -> None:
        follower = ZoneKeeper(pool)
        machine.install("2030a", 3)
        await follower.run_once()
        assert load_zone(ZONE).utcoffset(NINE.replace(tzinfo=None)) == 3 * HOUR
        machine.write("2030b", 2)
        assert load_zone(ZONE).utcoffset(NINE.replace(tzinfo=None)) == 3 * HOUR
        await follower.run_once()
        assert load_zone(ZONE).utcoffset(NINE.replace(tzinfo=None)) == 2 * HOUR

    async def test_only_the_last_two_are_kept_whole(self, machine: Machine, keeper: ZoneKeeper, pool: Pool) -> None:
        for number, version in enumerate(("2030a", "2030b", "2030c")):
            machine.install(version, 3, (NOW + DAY, number))
            await keeper.run_once()
        assert machine_version() == "2030c"
        rows = await pool.query("select version from duly.zone_rules where data is not null order by 1")
        assert [row["version"] for row in rows] == ["2030b", "2030c"]
        assert [one.version for one in await zones.versions(pool)] == ["2030c", "2030b", "2030a"]
