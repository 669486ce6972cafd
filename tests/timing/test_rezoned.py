"""Time-zone data that changes between plan and fire: each local occurrence comes exactly once.

Two versions of a zone, random schedules and the scheduler's own planner; no database. `DULY_TEST_REZONED` is the number
of random stories (default 300), `DULY_TEST_SEED` the seed of the first.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from duly import checks
from duly.model import JobRequest, Policy
from duly.scheduler.planner import BatchPlan, plan_batch
from duly.store.fires import DueJob
from duly.timing import differing, jitter_offset, load_zone, use_rules
from duly.timing.zones import is_newer, machine_rules, machine_version, pack_rules, unpack_rules
from harness.waiting import drawn_seed
from timing.tzif import zone_file

HOUR, DAY, MINUTE = timedelta(hours=1), timedelta(days=1), timedelta(minutes=1)
STORIES = int(os.environ.get("DULY_TEST_REZONED", "300"))
SEED = drawn_seed()
ZONE = "Europe/Kyiv"
START = datetime(2026, 1, 5, 0, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def own_rules_again() -> Iterator[None]:
    yield
    use_rules()


class Told:
    """One job that the planner fires: its runs so far, as (scheduled_at, missed), and its next occurrence."""

    def __init__(self, schedule: str, *, missed_window: str = "RUN_ALL", jitter: int = 0, zone: str = ZONE) -> None:
        self.policy = Policy(missed_window=missed_window, jitter_seconds=jitter)  # type: ignore[arg-type]
        self.job_id = UUID(int=7)
        request = JobRequest("noop", schedule=schedule, timezone=zone, policy=self.policy)
        plan = checks.plan_schedule(request, now=START, job_id=self.job_id, created_at=START)
        self.kind, self.schedule, self.zone = plan.kind, plan.canonical, zone
        self.next: datetime | None = plan.first
        self.planned = START
        self.fired: list[tuple[datetime, bool]] = []
        self.dropped = 0

    def look(self, now: datetime) -> None:
        """Does what the firer does with the job at this moment."""
        while self.next is not None and self.next <= now:
            job = DueJob(
                self.job_id, self.kind, self.schedule, self.zone, None, None, self.policy.to_stored(), START, self.next,
                None, len(self.fired), now, since=self.planned, ctid=(0, 1), busy=False,
            )  # fmt: skip
            batch: BatchPlan = plan_batch([job], now=now, misfire_grace=timedelta(seconds=10))
            assert batch.parked == []
            if batch.rezoned:
                # Like `zones/move.sql`, which makes this a change of the job.
                ((_, self.next),) = batch.rezoned
                self.planned = max(self.planned, now)
                continue
            fires = list(batch.fires.values())
            if batch.simple.job_ids:
                self._fire([(batch.simple.expected[0], False)], batch.simple.next_run_at[0])
            else:
                (fire,) = fires
                runs = [(at, bool(flags & 2)) for at, flags in zip(fire.run_scheduled_at, fire.run_flags, strict=True)]
                self.dropped += sum(fire.drop_count)
                self._fire(runs, fire.next_run_at[0])

    def _fire(self, runs: list[tuple[datetime, bool]], following: datetime | None) -> None:
        self.fired += runs
        self.planned = max([self.planned, *(at for at, _ in runs)])
        self.next = following

    def until(self, end: datetime) -> None:
        while self.next is not None and self.next <= end:
            self.look(self.next)

    @property
    def instants(self) -> list[datetime]:
        return [at for at, _ in self.fired]


def rules(first_hours: float, *changes: tuple[datetime, float]) -> dict[str, bytes]:
    return {ZONE: zone_file(timedelta(hours=first_hours), [(at, timedelta(hours=hours)) for at, hours in changes])}


def switch(old: dict[str, bytes], new: dict[str, bytes], at: datetime) -> None:
    use_rules(new, earlier=differing(old, new, at), since=at)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


class TestOneJob:
    def test_an_hour_back_the_occurrence_waits_for_its_new_time(self) -> None:
        old, new = rules(3), rules(3, (START + DAY, 2))
        use_rules(old)
        job = Told("0 9 * * *")
        assert job.next == utc("2026-01-05 06:00")
        job.until(utc("2026-01-06 00:00"))
        switch(old, new, utc("2026-01-06 00:00"))
        job.until(utc("2026-01-08 12:00"))
        assert job.instants == [
            utc("2026-01-05 06:00"), utc("2026-01-06 07:00"), utc("2026-01-07 07:00"), utc("2026-01-08 07:00")
        ]  # fmt: skip
        assert not any(missed for _, missed in job.fired)

    @pytest.mark.parametrize(("missed_window", "ran"), [("RUN_ONCE", 1), ("RUN_ALL", 1), ("SKIP", 0)])
    def test_an_hour_ahead_it_is_late_by_the_missed_rules(self, missed_window: str, ran: int) -> None:
        old, new = rules(2), rules(2, (START + DAY, 3))
        use_rules(old)
        job = Told("0 9 * * *", missed_window=missed_window)
        job.until(utc("2026-01-06 06:30"))
        assert job.next == utc("2026-01-06 07:00")
        switch(old, new, utc("2026-01-06 06:30"))
        job.until(utc("2026-01-06 12:00"))
        assert job.fired[1:] == [(utc("2026-01-06 06:00"), True)][:ran]
        assert job.dropped == 1 - ran
        assert job.next == utc("2026-01-07 06:00")

    @pytest.mark.parametrize(("before", "after"), [(3.0, 2.0), (2.0, 3.0), (2.0, 5.5)])
    def test_a_local_one_off_runs_once(self, before: float, after: float) -> None:
        old, new = rules(before), rules(before, (START + HOUR, after))
        use_rules(old)
        job = Told("2026-01-05T09:00")
        switch(old, new, START + HOUR)
        job.until(START + 3 * DAY)
        assert job.instants == [utc("2026-01-05 09:00") - timedelta(hours=after)]
        assert job.next is None

    def test_the_occurrence_that_ran_by_the_old_rules_does_not_run_again(self) -> None:
        """By the old rules it was nine o'clock at 06:00 UTC; by the new rules it is nine at 07:00 UTC."""
        old, new = rules(3), rules(3, (START, 2))
        use_rules(old)
        job = Told("0 9,10 * * *")
        job.until(utc("2026-01-05 06:30"))
        assert job.instants == [utc("2026-01-05 06:00")]
        switch(old, new, utc("2026-01-05 06:30"))
        job.until(utc("2026-01-06 07:30"))
        assert job.instants == [utc("2026-01-05 06:00"), utc("2026-01-05 08:00"), utc("2026-01-06 07:00")]

    @pytest.mark.parametrize("after", [2.0, 2.5, 4.0])
    def test_what_runs_on_elapsed_time_goes_on_with_it(self, after: float) -> None:
        old, new = rules(3), rules(3, (START, after))
        use_rules(old)
        job = Told("*/15 * * * *")
        job.until(utc("2026-01-05 06:30"))
        switch(old, new, utc("2026-01-05 06:30"))
        job.until(utc("2026-01-05 12:00"))
        assert job.instants == [START + n * 15 * MINUTE for n in range(1, 49)]

    @pytest.mark.parametrize("schedule", ["every 5h", "2026-01-06T05:00:00Z"])
    def test_what_has_no_local_time_stays(self, schedule: str) -> None:
        old, new = rules(3), rules(3, (START, 2))
        use_rules(old)
        job = Told(schedule)
        planned = job.next
        switch(old, new, START + MINUTE)
        job.until(START + 2 * DAY)
        assert job.instants[0] == planned

    def test_the_zone_of_a_rule_is_its_own(self) -> None:
        old, new = rules(3), rules(3, (START + DAY, 2))
        use_rules(old)
        job = Told(f"DTSTART;TZID={ZONE}:20260105T090000\nRRULE:FREQ=DAILY", zone="UTC")
        switch(old, new, START + DAY)
        job.until(START + 3 * DAY)
        assert job.instants == [utc("2026-01-05 06:00"), utc("2026-01-06 07:00"), utc("2026-01-07 07:00")]

    def test_a_plan_by_somebody_who_has_not_heard_of_it(self) -> None:
        """A client whose machine has the old data submits after the change."""
        old, new = rules(3), rules(3, (START - DAY, 2))
        use_rules(old)
        job = Told("0 9 * * *")
        switch(old, new, START - HOUR)
        job.until(START + 2 * DAY)
        assert job.instants == [utc("2026-01-05 07:00"), utc("2026-01-06 07:00")]

    def test_a_plan_that_is_no_occurrence_by_any_rules_stays(self) -> None:
        """The job's next run was set to a time that is not in its schedule."""
        old, new = rules(3), rules(3, (START, 2))
        use_rules(old)
        job = Told("0 9 * * *")
        job.next = utc("2026-01-05 05:17")
        switch(old, new, START + HOUR)
        job.until(START + DAY)
        assert job.instants == [utc("2026-01-05 05:17"), utc("2026-01-05 07:00")]


@pytest.mark.parametrize("part", range(3))
def test_each_local_occurrence_comes_once(part: int) -> None:
    seed = SEED + part
    for number in range(STORIES // 3):
        _tell(random.Random(f"{seed} {number}"), f"DULY_TEST_SEED={seed}, story {number}")


def _tell(dice: random.Random, told: str) -> None:
    before = dice.choice((-5.0, 0.0, 2.0, 3.0, 5.5))
    after = before + dice.choice((-2.0, -1.0, -0.5, 0.5, 1.0, 2.0))
    changes_at = START + dice.randrange(0, 3 * 24) * HOUR
    noted = START + (dice.randrange(1, 4 * 24 * 60) + 0.5) * MINUTE  # never at the exact time of a fire
    old, new = rules(before), rules(before, (changes_at, after))
    minutes = ",".join(map(str, sorted(dice.sample((0, 10, 30, 45), dice.randint(1, 2)))))
    hours = ",".join(map(str, sorted(dice.sample(range(24), dice.randint(1, 5)))))
    rule = f"DTSTART;TZID={ZONE}:20260101T000000\nRRULE:FREQ=DAILY;BYHOUR={hours};BYMINUTE={minutes}"
    use_rules(old)
    job = Told(
        dice.choice((f"{minutes} {hours} * * *", rule)), jitter=dice.choice((0, 0, 1, 900)), missed_window="RUN_ALL"
    )
    offset = jitter_offset(job.job_id, job.policy.jitter_seconds)
    zone = load_zone(ZONE)
    job.until(noted)
    until_then = len(job.fired)
    last = job.instants[-1] if job.fired else START
    switch(old, new, noted)
    end = START + 8 * DAY
    job.until(end)
    assert job.instants == sorted(set(job.instants)), told
    # The local times of the runs, by the rules that were in force at each.
    new_zone = load_zone(ZONE)
    assert isinstance(new_zone, ZoneInfo)
    shown = [(at - offset).astimezone(zone if n < until_then else new_zone) for n, at in enumerate(job.instants)]
    seen = [one.replace(tzinfo=None, fold=0) for one in shown]
    # A local time that the new rules skip is moved to the end of the gap; a repeated one comes once.
    wall = changes_at.astimezone(new_zone).replace(tzinfo=None, fold=0)
    gap = (changes_at.astimezone(zone).replace(tzinfo=None, fold=0), wall)
    assert len(seen) == len(set(seen)), f"{told}: ran twice: {sorted(one for one in seen if seen.count(one) > 1)}"
    wanted = set()
    moment = (START - offset).astimezone(zone).replace(tzinfo=None, fold=0)
    over = (end - offset).astimezone(new_zone).replace(tzinfo=None, fold=0)
    while moment < over:
        moment = (moment + MINUTE).replace(second=0, microsecond=0)
        if f"{moment.minute}" in minutes.split(",") and f"{moment.hour}" in hours.split(","):
            wanted.add(moment)
    for one in sorted(wanted - set(seen)):
        if gap[0] <= one <= gap[1] or one > over - 3 * HOUR:
            continue  # in the gap, so moved to its end; or still in the future
        by_new = one.replace(tzinfo=new_zone).astimezone(UTC) + offset
        by_old = one.replace(tzinfo=zone).astimezone(UTC) + offset
        # By the old rules this time was in the future, and by the new rules it was over before the job last ran. Or it
        # is the moment of creation itself.
        assert (by_old > noted - MINUTE and by_new <= last) or by_old - offset <= START, f"{told}: {one} never ran"
    # The only other runs are those that a gap has moved.
    assert all(one in wanted or one == wall or one <= seen[0] for one in seen), told


class TestData:
    def test_the_machines_own(self) -> None:
        version = machine_version()
        assert version == machine_version()
        found = machine_rules()
        assert {"UTC", "Europe/Berlin", "America/New_York"} <= set(found)
        assert "Factory" not in found
        assert unpack_rules(pack_rules(found)) == found
        assert differing(found, found, START) == {}

    def test_rules_that_differ_only_in_writing_are_the_same(self) -> None:
        first, second = rules(2), rules(2, (utc("1950-01-01"), 2))
        assert first != second
        assert differing(first, second, START) == {}
        assert set(differing(first, rules(2, (START + 400 * DAY, 3)), START)) == {ZONE}

    @pytest.mark.parametrize(
        ("version", "other", "newer"),
        [
            ("2026b", "2026a", True), ("2026a", "2026b", False), ("2026a", "2025z", True), ("2026a", "2026a", False),
            ("2020za", "2020z", True), ("sha256:1", "2026a", True), ("2026a", "sha256:1", True),
        ],
    )  # fmt: skip
    def test_which_is_newer(self, version: str, other: str, newer: bool) -> None:
        assert is_newer(version, other) is newer
