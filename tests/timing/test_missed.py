"""Occurrences that are found late: every policy, every bound, after outages of any length."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.model import DEFAULT_POLICY, MissedWindow, Policy
from duly.timing import Drop, FirePlan, Timetable, plan_fire, plan_resume
from duly.timing.missed import MAX_RUNS, MAX_STEPS
from duly.timing.schedule import Schedule

from .helpers import NEW_YORK, parse, utc

SKIP = Policy(missed_window="SKIP")
RUN_ONCE = Policy(missed_window="RUN_ONCE")
RUN_ALL = Policy(missed_window="RUN_ALL")


def table(text: str, zone: str = "UTC", **options: Any) -> Timetable:
    return Timetable(parse(text, zone, anchor=utc("2026-01-01"), **options))


def plan(timetable: Timetable, expected: str, now: str, policy: Policy, **options: Any) -> FirePlan:
    return plan_fire(timetable, expected=utc(expected), now=utc(now), policy=policy, **options)


def follow(timetable: Timetable, expected: datetime, now: datetime, policy: Policy) -> list[FirePlan]:
    """All plans up to `now`: each call goes on where the previous one ended."""
    plans: list[FirePlan] = []
    moment: datetime | None = expected
    while moment is not None and moment <= now:
        plans.append(plan_fire(timetable, expected=moment, now=now, policy=policy))
        assert plans[-1].next_run_at is None or plans[-1].next_run_at > moment
        moment = plans[-1].next_run_at
    return plans


def missed_runs(plans: list[FirePlan]) -> list[datetime]:
    return [moment for one in plans for moment, missed in one.runs if missed]


def dropped(plans: list[FirePlan]) -> int:
    return sum(drop.count for one in plans for drop in one.drops)


def test_on_time_it_fires_once_and_moves_on() -> None:
    for policy in (SKIP, RUN_ONCE, RUN_ALL):
        done = plan(table("0 * * * *"), "2026-01-01 10:00", "2026-01-01 10:00:00.005", policy)
        assert done == FirePlan(((utc("2026-01-01 10:00"), False),), (), utc("2026-01-01 11:00"))


def test_within_the_grace_it_is_only_late() -> None:
    for policy in (SKIP, RUN_ONCE, RUN_ALL):
        done = plan(table("0 * * * *"), "2026-01-01 10:00", "2026-01-01 10:00:10", policy)
        assert done.runs == ((utc("2026-01-01 10:00"), False),)
        late = plan(table("0 * * * *"), "2026-01-01 10:00", "2026-01-01 10:00:10.000001", policy)
        assert [missed for _, missed in late.runs] == ([] if policy is SKIP else [True])


def test_within_the_grace_every_one_fires() -> None:
    done = plan(table("* * * * * *"), "2026-01-01 10:00", "2026-01-01 10:00:04.5", SKIP)
    assert done.runs == tuple((utc(f"2026-01-01 10:00:0{second}"), False) for second in range(5))
    assert done.next_run_at == utc("2026-01-01 10:00:05")


def test_a_grace_of_ones_own() -> None:
    done = plan(table("0 * * * *"), "2026-01-01 10:00", "2026-01-01 10:30", SKIP, misfire_grace=timedelta(hours=1))
    assert done.runs == ((utc("2026-01-01 10:00"), False),)


@pytest.mark.parametrize("text", ["* * * * *", "every 1m", "FREQ=MINUTELY"])
def test_down_26_hours_with_a_minutely_job(text: str) -> None:
    timetable = table(text, NEW_YORK if text != "FREQ=MINUTELY" else "UTC")
    expected, now = utc("2026-03-07 12:00"), utc("2026-03-08 13:59:30")
    every = [expected + timedelta(minutes=n) for n in range(1560)]
    (skipped,) = follow(timetable, expected, now, SKIP)
    assert skipped.runs == ()
    assert skipped.drops == (Drop(every[0], every[-1], 1560, "SKIP"),)
    (once,) = follow(timetable, expected, now, RUN_ONCE)
    assert once.runs == ((every[-1], True),)
    assert once.drops == (Drop(every[0], every[-2], 1559, "RUN_ONCE"),)
    (some,) = follow(timetable, expected, now, RUN_ALL)
    assert some.runs == tuple((moment, True) for moment in every[-100:])
    assert some.drops == (Drop(every[0], every[-101], 1460, "max_missed"),)
    assert {one.next_run_at for one in (skipped, once, some)} == {utc("2026-03-08 14:00")}


def test_all_of_them_come_in_portions() -> None:
    policy = Policy(missed_window="RUN_ALL", max_missed=1_500)
    expected, now = utc("2026-03-07 12:00"), utc("2026-03-08 13:59:30")
    for text in ("* * * * *", "FREQ=MINUTELY"):
        plans = follow(table(text), expected, now, policy)
        assert [len(one.runs) for one in plans] == [MAX_RUNS, 500]
        assert missed_runs(plans) == [expected + timedelta(minutes=n) for n in range(60, 1560)]
        assert [drop.count for one in plans for drop in one.drops] == [60]


@pytest.mark.parametrize("text", ["* * * * * *", "every 1s", "FREQ=SECONDLY"])
@pytest.mark.parametrize("missed_window", ["SKIP", "RUN_ONCE", "RUN_ALL"])
def test_an_outage_of_any_length_costs_little(text: str, missed_window: MissedWindow) -> None:
    policy = Policy(missed_window=missed_window)
    # A month of a job that is due each second. A rule is walked step by step, so it gets one day, in several calls.
    days = 1 if text.startswith("FREQ") else 31
    now = utc("2026-05-01 12:00:00.5")
    expected = now.replace(microsecond=0) - timedelta(days=days)
    timetable = table(text)
    start = time.process_time()
    plans = follow(timetable, expected, now, policy)
    spent = time.process_time() - start
    assert spent < 0.25 * len(plans)
    assert len(plans) <= (1 if days == 31 else 2 + days * 86_400 // MAX_STEPS)
    kept = {"SKIP": 0, "RUN_ONCE": 1, "RUN_ALL": 100}[missed_window]
    # Occurrences were due half a second ago and every second before; the last ten are merely late.
    late = days * 86_400 + 1 - 10
    assert missed_runs(plans) == [expected + timedelta(seconds=n) for n in range(late - kept, late)]
    assert dropped(plans) == late - kept
    assert plans[-1].next_run_at == utc("2026-05-01 12:00:01")
    if days == 1:
        return
    tracemalloc.start()
    follow(timetable, expected, now, policy)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_the_catch_up_window_drops_what_is_older() -> None:
    policy = Policy(missed_window="RUN_ALL", catch_up_window_seconds=1800)
    done = plan(table("*/10 * * * *"), "2026-01-01 08:00", "2026-01-01 10:05", policy)
    assert done.runs == tuple((utc(f"2026-01-01 {t}"), True) for t in ("09:40", "09:50", "10:00"))
    assert done.drops == (Drop(utc("2026-01-01 08:00"), utc("2026-01-01 09:30"), 10, "catch_up_window"),)
    once = plan(
        table("*/10 * * * *"), "2026-01-01 08:00", "2026-01-01 10:05", replace(policy, missed_window="RUN_ONCE")
    )
    assert once.runs == ((utc("2026-01-01 10:00"), True),)
    assert [(drop.count, drop.reason) for drop in once.drops] == [(10, "catch_up_window"), (2, "RUN_ONCE")]


@pytest.mark.parametrize("text", ["*/10 * * * *", "FREQ=MINUTELY;INTERVAL=10"])
def test_what_stands_on_the_edge_of_the_window_runs(text: str) -> None:
    policy = Policy(missed_window="RUN_ALL", catch_up_window_seconds=1500)
    done = plan(table(text), "2026-01-01 08:00", "2026-01-01 10:05", policy)
    assert [moment for moment, _ in done.runs] == [utc(f"2026-01-01 {t}") for t in ("09:40", "09:50", "10:00")]


def test_a_window_that_excludes_everything() -> None:
    policy = Policy(missed_window="RUN_ALL", catch_up_window_seconds=60)
    done = plan(table("0 * * * *"), "2026-01-01 08:00", "2026-01-01 10:05", policy)
    assert done.runs == ()
    assert done.drops == (Drop(utc("2026-01-01 08:00"), utc("2026-01-01 10:00"), 3, "catch_up_window"),)
    assert done.next_run_at == utc("2026-01-01 11:00")


def test_a_window_shorter_than_the_grace_leaves_what_is_only_late() -> None:
    policy = Policy(catch_up_window_seconds=1)
    assert plan(table("0 * * * *"), "2026-01-01 08:00", "2026-01-01 08:00:05", policy).runs


@pytest.mark.parametrize("policy", [SKIP, RUN_ONCE, RUN_ALL, Policy(missed_window="RUN_ALL", max_missed=0)])
@pytest.mark.parametrize("text", ["2026-01-01T10:00:00Z", "2026-01-01T10:00"])
def test_a_one_off_is_never_dropped_by_a_policy(policy: Policy, text: str) -> None:
    done = plan(table(text), "2026-01-01 10:00", "2027-01-01 10:00", policy)
    assert done == FirePlan(((utc("2026-01-01 10:00"), True),), (), None)


def test_a_one_off_is_dropped_by_its_own_window() -> None:
    policy = Policy(catch_up_window_seconds=60)
    done = plan(table("2026-01-01T10:00:00Z"), "2026-01-01 10:00", "2026-01-01 10:02", policy)
    moment = utc("2026-01-01 10:00")
    assert done == FirePlan((), (Drop(moment, moment, 1, "catch_up_window"),), None)


def test_the_last_occurrence_is_final() -> None:
    timetable = Timetable(parse("0 * * * *"), end_at=utc("2026-01-01 10:00"))
    assert plan(timetable, "2026-01-01 09:00", "2026-01-01 09:00", SKIP).next_run_at is not None
    last = plan(timetable, "2026-01-01 10:00", "2026-01-01 10:00", SKIP)
    assert last.next_run_at is None
    gone = plan(timetable, "2026-01-01 09:00", "2026-01-01 12:00", SKIP)
    assert (gone.runs, gone.next_run_at) == ((), None)
    counted = Timetable(parse("FREQ=HOURLY;COUNT=2", anchor=utc("2026-01-01 08:00")))
    assert plan(counted, "2026-01-01 10:00", "2026-01-01 10:00", SKIP).next_run_at is None


def test_max_runs_ends_the_job() -> None:
    timetable = table("0 * * * *")
    options: dict[str, Any] = {"policy": RUN_ALL, "max_runs": 5}
    some = plan(timetable, "2026-01-01 00:00", "2026-01-01 08:30", run_count=0, **options)
    assert len(some.runs) == 5
    assert some.next_run_at is None
    last = plan(timetable, "2026-01-01 08:00", "2026-01-01 08:00", run_count=4, **options)
    assert (len(last.runs), last.next_run_at) == (1, None)
    more = plan(timetable, "2026-01-01 08:00", "2026-01-01 08:00", run_count=3, **options)
    assert (len(more.runs), more.next_run_at) == (1, utc("2026-01-01 09:00"))
    none = plan(timetable, "2026-01-01 08:00", "2026-01-01 08:00", run_count=5, **options)
    assert none == FirePlan((), (), None)


def test_what_is_dropped_does_not_count_towards_max_runs() -> None:
    done = plan(table("0 * * * *"), "2026-01-01 00:00", "2026-01-01 08:30", SKIP, run_count=4, max_runs=5)
    assert (done.runs, done.next_run_at) == ((), utc("2026-01-01 09:00"))


def test_nothing_fires_early() -> None:
    done = plan(table("0 * * * *"), "2026-01-01 10:00", "2026-01-01 09:59:59.999999", RUN_ALL)
    assert done == FirePlan((), (), utc("2026-01-01 10:00"))


def test_a_resumed_job_goes_on_with_its_next_future_occurrence() -> None:
    assert plan_resume(table("0 * * * *"), now=utc("2026-01-01 10:30")) == utc("2026-01-01 11:00")
    assert plan_resume(table("0 * * * *"), now=utc("2026-01-01 11:00")) == utc("2026-01-01 12:00")
    # A one-off that has not run is due now.
    assert plan_resume(table("2026-01-01T10:00:00Z"), now=utc("2026-01-01 10:30")) == utc("2026-01-01 10:30")


def test_an_edited_job_fires_what_was_expected_and_follows_its_new_schedule() -> None:
    # `expected` is not on the timetable any more. It still fires, once.
    done = plan(table("30 * * * *"), "2026-01-01 10:07", "2026-01-01 10:07", RUN_ALL)
    assert done == FirePlan(((utc("2026-01-01 10:07"), False),), (), utc("2026-01-01 10:30"))


def test_what_a_dst_gap_dropped_is_recorded_once() -> None:
    policy = Policy(dst_gap="skip")
    timetable = table("30 2 * * *", NEW_YORK, dst_gap="skip")
    lost = Drop(utc("2026-03-08 07:00"), utc("2026-03-08 07:00"), 1, "dst_gap")
    before = plan(timetable, "2026-03-07 07:30", "2026-03-07 07:30", policy, since=utc("2026-03-06 07:30"))
    assert (before.drops, before.next_run_at) == ((), utc("2026-03-09 06:30"))
    after = plan(timetable, "2026-03-09 06:30", "2026-03-09 06:30", policy, since=utc("2026-03-07 07:30"))
    assert (after.drops, len(after.runs)) == ((lost,), 1)
    # A job created after the gap lost nothing, and a job with dst_gap=shift never does.
    assert plan(timetable, "2026-03-09 06:30", "2026-03-09 06:30", policy, since=utc("2026-03-08 12:00")).drops == ()
    shifting = table("30 2 * * *", NEW_YORK)
    assert plan(shifting, "2026-03-09 06:30", "2026-03-09 06:30", DEFAULT_POLICY, since=utc("2026-03-01")).drops == ()
    # An outage over the gap.
    late = plan(timetable, "2026-03-07 07:30", "2026-03-10 12:00", policy, since=utc("2026-03-06 07:30"))
    assert [drop.reason for drop in late.drops] == ["dst_gap", "RUN_ONCE"]


def by_the_book(schedule: Schedule, expected: datetime, now: datetime, policy: Policy) -> tuple[list[datetime], int]:
    """The missed runs and the number of drops, from a plain list of all due occurrences."""
    due = [expected]
    while (following := schedule.next(due[-1])) is not None and following <= now:
        due.append(following)
    late = [moment for moment in due if moment < now - timedelta(seconds=10)]
    kept = late
    if policy.catch_up_window_seconds is not None:
        kept = [moment for moment in late if moment >= now - timedelta(seconds=policy.catch_up_window_seconds)]
    keep = {"SKIP": 0, "RUN_ONCE": 1, "RUN_ALL": policy.max_missed}[policy.missed_window]
    kept = kept[max(0, len(kept) - keep) :]
    return kept, len(late) - len(kept)


@settings(max_examples=250, deadline=None)
@given(
    text=st.sampled_from(
        ["* * * * *", "*/7 2 * * *", "30 2 * * *", "0 0 L * *", "every 1h", "every 37s", "FREQ=HOURLY"]
    ),
    zone=st.sampled_from(["UTC", NEW_YORK, "Australia/Lord_Howe"]),
    policy=st.builds(
        Policy,
        missed_window=st.sampled_from(["SKIP", "RUN_ONCE", "RUN_ALL"]),
        catch_up_window_seconds=st.sampled_from([None, 0, 5, 3600, 100_000]),
        max_missed=st.sampled_from([0, 1, 3, 60, 100]),
        dst_gap=st.sampled_from(["shift", "skip"]),
        dst_fold=st.sampled_from(["first", "second", "both"]),
    ),
    start=st.integers(0, 30 * 86_400),
    outage=st.integers(0, 4 * 86_400),
)
def test_agrees_with_a_plain_list_of_everything_due(
    text: str, zone: str, policy: Policy, start: int, outage: int
) -> None:
    begin = utc("2026-02-20") + timedelta(seconds=start)
    schedule = parse(text, zone, anchor=begin, dst_gap=policy.dst_gap, dst_fold=policy.dst_fold)
    expected = schedule.next(begin)
    assert expected is not None
    now = expected + timedelta(seconds=outage)
    plans = follow(Timetable(schedule), expected, now, policy)
    assert (missed_runs(plans), dropped(plans)) == by_the_book(schedule, expected, now, policy)
    for one in plans:
        for drop in one.drops:
            assert drop.first <= drop.last
            assert drop.count == 1 + schedule.count(drop.first, drop.last, 10**9)


@settings(max_examples=200, deadline=None)
@given(
    text=st.sampled_from(["30 2 * * *", "0,30 1-3 * * *", "*/20 * * * *", "0 0 * * *", "*/30 59 1 * * *"]),
    zone=st.sampled_from([NEW_YORK, "Australia/Lord_Howe", "America/Havana", "Antarctica/Troll", "Africa/Casablanca"]),
    gap=st.sampled_from(["shift", "skip"]),
    fold=st.sampled_from(["first", "second", "both"]),
    start=st.integers(0, 400 * 1440),
    length=st.integers(0, 20 * 1440),
)
def test_counting_is_the_same_as_walking(text: str, zone: str, gap: str, fold: str, start: int, length: int) -> None:
    schedule = parse(text, zone, dst_gap=gap, dst_fold=fold)
    first = utc("2026-01-01") + timedelta(minutes=start)
    last = first + timedelta(minutes=length)
    walked = 0
    moment = schedule.next(first)
    while moment is not None and moment <= last:
        walked += 1
        moment = schedule.next(moment)
    assert schedule.count(first, last, 0) == walked
