"""Timetables: a schedule within its job's bounds and with its jitter; and the caches for half a million of them."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from itertools import islice
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest

from duly.errors import InvalidInput
from duly.model import DEFAULT_POLICY, DstFold, Policy, ScheduleKind
from duly.timing import (
    Definition,
    Fuel,
    Timetable,
    forget_zones,
    jitter_offset,
    load_zone,
    plan_fire,
)
from duly.timing import zones as zones_module
from duly.timing.cron import CronSchedule
from duly.timing.schedule import DAWN

from .helpers import NEW_YORK, parse, utc


def make(
    kind: ScheduleKind,
    schedule: str,
    zone: str = "UTC",
    *,
    policy: Policy = DEFAULT_POLICY,
    job_id: UUID | None = None,
    created_at: str = "2026-01-01 00:00",
    start_at: str | None = None,
    end_at: str | None = None,
) -> Timetable:
    bounds = (utc(start_at) if start_at else None, utc(end_at) if end_at else None)
    return Definition(kind, schedule, zone, *bounds, utc(created_at), policy).timetable(job_id or uuid4())


def all_of(timetable: Timetable, after: str, most: int = 100) -> list[datetime]:
    found: list[datetime] = []
    moment = timetable.next(utc(after))
    while moment is not None and len(found) < most:
        found.append(moment)
        moment = timetable.next(moment)
    return found


def test_bounds_are_inclusive() -> None:
    timetable = make("cron", "0 * * * *", start_at="2026-01-01 08:00", end_at="2026-01-01 10:00")
    assert all_of(timetable, "2026-01-01 00:00") == [utc(f"2026-01-01 {hour}:00") for hour in ("08", "09", "10")]
    assert [one.scheduled_at for one in timetable.walk(utc("2026-01-01"))] == all_of(timetable, "2026-01-01 00:00")
    assert timetable.next(utc("2026-01-01 10:00")) is None
    assert timetable.count(utc("2026-01-01"), utc("2027-01-01"), 100) == 3


def test_an_interval_starts_at_its_start() -> None:
    timetable = make("interval", "every 1h", created_at="2026-01-01 08:30", start_at="2026-01-01 08:30")
    assert all_of(timetable, "2026-01-01 00:00", 2) == [utc("2026-01-01 08:30"), utc("2026-01-01 09:30")]


def test_jitter_is_stable_spread_and_below_its_bound() -> None:
    ids = [UUID(int=number) for number in range(4000)]
    offsets = [jitter_offset(job_id, 60) for job_id in ids]
    assert offsets == [jitter_offset(job_id, 60) for job_id in ids]
    assert min(offsets) >= timedelta(0)
    assert max(offsets) < timedelta(seconds=60)
    assert all(offset % timedelta(milliseconds=1) == timedelta(0) for offset in offsets)
    tenths = [sum(offset // timedelta(seconds=6) == tenth for offset in offsets) for tenth in range(10)]
    assert min(tenths) > 320
    assert max(tenths) < 480
    assert jitter_offset(ids[0], 0) == timedelta(0)


def test_a_jittered_job_keeps_its_period_and_its_offset() -> None:
    policy = Policy(jitter_seconds=600)
    job_id = UUID(int=7)
    offset = jitter_offset(job_id, 600)
    timetable = make("cron", "0 0 * * *", policy=policy, job_id=job_id)
    assert offset > timedelta(0)
    assert all_of(timetable, "2026-01-01 12:00", 3) == [utc(f"2026-01-0{day}") + offset for day in (2, 3, 4)]
    assert [one.scheduled_at for one in islice(timetable.walk(utc("2026-01-01 12:00")), 3)] == all_of(
        timetable, "2026-01-01 12:00", 3
    )
    assert timetable.occurs_at(utc("2026-01-02") + offset)
    assert not timetable.occurs_at(utc("2026-01-02"))
    assert timetable.count(utc("2026-01-01 12:00"), utc("2026-01-04") + offset, 9) == 3


def test_jitter_does_not_pull_in_an_occurrence_from_before_the_job() -> None:
    policy = Policy(jitter_seconds=600)
    for number in range(50):
        daily = make("cron", "0 0 * * *", policy=policy, job_id=UUID(int=number), created_at="2026-01-01 00:00:01")
        first = daily.next(utc("2026-01-01 00:00:01"))
        assert first is not None
        assert first >= utc("2026-01-02")
        hourly = make("interval", "every 1h", policy=policy, job_id=UUID(int=number))
        first = hourly.next(utc("2026-01-01"))
        assert first is not None
        assert utc("2026-01-01 01:00") <= first < utc("2026-01-01 01:10")


def test_the_end_holds_for_the_nominal_time() -> None:
    policy = Policy(jitter_seconds=600)
    timetable = make("cron", "0 0 * * *", policy=policy, job_id=UUID(int=7), end_at="2026-01-03 00:00")
    assert all_of(timetable, "2026-01-01 12:00") == [
        utc("2026-01-02") + timetable.offset,
        utc("2026-01-03") + timetable.offset,
    ]


def test_a_new_job_begins_after_now_and_a_one_off_at_its_time() -> None:
    assert make("cron", "0 * * * *").next(utc("2026-01-01 10:00")) == utc("2026-01-01 11:00")
    assert make("interval", "every 15m", created_at="2026-01-01 10:00").next(utc("2026-01-01 10:00")) == utc(
        "2026-01-01 10:15"
    )
    assert make("once", "2020-01-01T00:00:00Z").next(DAWN) == utc("2020-01-01")


def test_a_stored_now_is_one_run_whatever_moment_that_was() -> None:
    timetable = make("once", "now", created_at="2026-01-01 10:00:00.000001")
    # The row was created a moment after the job was due, and the job still has only one run.
    plan = plan_fire(timetable, expected=utc("2026-01-01 10:00"), now=utc("2026-01-01 10:00:01"), policy=DEFAULT_POLICY)
    assert (plan.runs, plan.next_run_at) == (((utc("2026-01-01 10:00"), False),), None)


def test_stored_text_is_read_even_when_nothing_is_left_of_it() -> None:
    ended = make("rrule", "DTSTART:20200101T000000\nRRULE:FREQ=DAILY;COUNT=2")
    assert ended.next(utc("2026-01-01")) is None
    assert len(all_of(ended, "2019-01-01 00:00")) == 2


def test_a_rule_without_dtstart_begins_at_the_anchor() -> None:
    rule = make("rrule", "RRULE:FREQ=DAILY", created_at="2026-01-01 07:30")
    assert rule.next(utc("2026-01-01 12:00")) == utc("2026-01-02 07:30")
    other = make("rrule", "RRULE:FREQ=DAILY", created_at="2026-01-01 08:45")
    assert other.next(utc("2026-01-01 12:00")) == utc("2026-01-02 08:45")


def test_jobs_that_say_the_same_share_one_timetable() -> None:
    assert make("cron", "0 9 * * MON", NEW_YORK) is make("cron", "0 9 * * MON", NEW_YORK)
    assert make("cron", "0 9 * * MON", NEW_YORK) is not make("cron", "0 9 * * MON", "Europe/Paris")
    jittered = Policy(jitter_seconds=60)
    one = make("cron", "0 9 * * MON", NEW_YORK, policy=jittered)
    other = make("cron", "0 9 * * MON", NEW_YORK, policy=jittered)
    assert one.schedule is other.schedule


def test_equal_questions_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_zones()
    computed = Counter[tuple[CronSchedule, datetime]]()
    compute = CronSchedule.next

    def counted(schedule: CronSchedule, after: datetime, fuel: Fuel | None = None) -> datetime | None:
        computed[schedule, after] += 1
        return compute(schedule, after, fuel)

    monkeypatch.setattr(CronSchedule, "next", counted)
    expected = utc("2026-01-01 05:00")
    for number in range(2000):
        timetable = make("cron", f"{number % 20} 0 * * *", NEW_YORK, policy=Policy(jitter_seconds=number % 2 * 60))
        timetable.next(expected + timetable.offset)
    assert len(computed) == computed.total() == 20


def test_a_zone_that_disappears_is_noticed_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_zones()
    zone = load_zone(NEW_YORK)
    assert load_zone(NEW_YORK) is zone

    class Gone(ZoneInfo):
        def __new__(cls, key: str) -> Gone:
            raise KeyError(key)

    with monkeypatch.context() as patch:
        patch.setattr(zones_module, "ZoneInfo", Gone)
        assert load_zone(NEW_YORK) is zone  # still remembered
        make("cron", "0 9 * * *", NEW_YORK)
        forget_zones()
        for _ in range(2):
            with pytest.raises(InvalidInput) as caught:
                make("cron", "0 9 * * *", NEW_YORK)
            assert caught.value.field == "timezone"
            assert NEW_YORK in str(caught.value)
    assert make("cron", "0 9 * * *", NEW_YORK).next(utc("2026-01-01")) == utc("2026-01-01 14:00")


def test_timetables_compare_by_meaning() -> None:
    assert Timetable(parse("@daily")) == Timetable(parse("0 0 * * *"))
    assert hash(Timetable(parse("@daily"))) == hash(Timetable(parse("0 0 * * *")))


@pytest.mark.parametrize("fold", ["first", "second", "both"])
@pytest.mark.parametrize("text", ["2026-11-01T01:30", "2026-03-08T02:30", "2026-01-01T10:00:00Z"])
@pytest.mark.parametrize("jitter", [0, 600, 86_400])
@pytest.mark.parametrize("late", [0, 5, 3_600])
@pytest.mark.parametrize("start_at", [None, "2030-01-01 00:00"])
def test_a_one_off_fires_once_whatever_its_policy(
    text: str, fold: DstFold, jitter: int, late: int, start_at: str | None
) -> None:
    policy = Policy(jitter_seconds=jitter, dst_fold=fold, missed_window="SKIP")
    # Submits of one-offs with bounds are refused now, but older stores may hold some.
    timetable = make("once", text, NEW_YORK, policy=policy, start_at=start_at)
    for expected in (utc("2026-01-01 10:00"), utc("2026-11-01 05:30"), utc("2026-11-01 06:30:01")):
        plan = plan_fire(
            timetable, expected=expected, now=expected + timedelta(seconds=late), policy=policy, max_runs=1
        )
        assert [moment for moment, _ in plan.runs] == [expected]
        assert plan.next_run_at is None


def test_jitter_ends_with_the_calendar() -> None:
    job_id = UUID(int=7)
    late = make(
        "rrule",
        "DTSTART:99991231T235900Z\nRRULE:FREQ=MINUTELY;COUNT=1",
        policy=Policy(jitter_seconds=86_400),
        job_id=job_id,
    )
    assert jitter_offset(job_id, 86_400) > timedelta(minutes=1)
    assert late.next(utc("2026-01-01")) is None
    assert list(late.walk(utc("2026-01-01"))) == []
    assert late.of_nominal(utc("9999-12-31 23:59")) is None


@pytest.mark.parametrize("text", ["0 9 * * *", "*/7 * * * *"])
def test_what_an_earlier_jitter_fired_is_answered_for(text: str) -> None:
    """A run ends its own occurrence and not the next one, even if the job's jitter has changed since."""
    job_id = UUID(int=7)
    nominal = make("cron", text)
    for seconds in (0, 1, 60, 400):
        fired = make("cron", text, policy=Policy(jitter_seconds=seconds), job_id=job_id).next(utc("2026-01-05"))
        assert fired is not None
        own = fired - jitter_offset(job_id, seconds)
        for other in (0, 60, 400):
            timetable = make("cron", text, policy=Policy(jitter_seconds=other), job_id=job_id)
            following = timetable.next(timetable.answered(fired))
            assert following is not None
            assert following > fired
            if jitter_offset(job_id, seconds) < timedelta(minutes=7):
                after = nominal.next(own)
                while after is not None and after + timetable.offset <= fired:
                    after = nominal.next(after)
                assert following - timetable.offset == after
