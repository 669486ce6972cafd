"""When a monitor's ping is due, and what is wrong with it: a monitor and a time in, a judgement out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duly.errors import InvalidInput
from duly.model import Ping, StoredMonitor
from duly.timing import parse_schedule
from duly.timing.expecting import judge


def at(text: str) -> datetime:
    """A time of 2030 in UTC."""
    return datetime.fromisoformat(f"2030-{text}").replace(tzinfo=UTC)


def monitor(schedule: str = "0 3 * * *", **fields: Any) -> StoredMonitor:
    made = at("01-10 12:00:00")
    parsed = parse_schedule(schedule, now=made, anchor=made)
    given: dict[str, Any] = {
        "tenant": "default", "slug": "nightly", "description": None, "schedule": parsed.canonical, "kind": parsed.kind,
        "timezone": "UTC", "grace_seconds": 600, "max_runtime_seconds": None, "created_at": made, "updated_at": made,
        "watched_from": made, "last_start_at": None, "last_success_at": None, "last_failure_at": None, "failure": None,
    }  # fmt: skip
    return StoredMonitor(**given | fields)


def test_a_missing_ping_is_late_within_its_grace_and_then_down() -> None:
    new = monitor()
    assert judge(new, at("01-10 13:00:00")).state == "new"
    late = judge(new, at("01-11 03:00:00"))
    assert (late.state, late.wrong, late.look_at) == ("late", {}, at("01-11 03:10:00"))
    down = judge(new, at("01-11 03:10:00"))
    assert (down.state, down.look_at) == ("down", None)
    assert down.wrong == {"no_ping": "a ping was expected at 2030-01-11 03:00:00Z (grace 10 min); no ping yet"}


@pytest.mark.parametrize(
    ("schedule", "pinged", "expected"),
    [
        ("0 3 * * *", "01-11 03:04:00", "01-12 03:00:00"),
        ("0 3 * * *", "01-11 02:59:40", "01-12 03:00:00"),  # two clocks differ
        ("0 3 * * *", "01-11 02:59:20", "01-11 03:00:00"),
        ("*/10 * * * * *", "01-11 03:00:08", "01-11 03:00:10"),  # a tenth of the time between two
        ("*/10 * * * * *", "01-11 03:00:09.500000", "01-11 03:00:20"),
        ("every 15m", "01-11 03:04:00", "01-11 03:19:00"),  # from the last ping
        ("RRULE:FREQ=DAILY;BYHOUR=3;BYMINUTE=0;BYSECOND=0", "01-11 03:04:00", "01-12 03:00:00"),
    ],
)
def test_a_ping_answers_what_was_expected_until_then(schedule: str, pinged: str, expected: str) -> None:
    found = judge(monitor(schedule, last_success_at=at(pinged)), at(pinged))
    assert found.expected_at == at(expected)


def test_expected_times_follow_the_zone_through_a_change_of_its_clocks() -> None:
    # In Berlin, 02:30 does not exist on 31 March 2030: a job would run at 03:00, which is 01:00 in UTC.
    berlin = monitor("30 2 * * *", timezone="Europe/Berlin", last_success_at=at("03-30 01:30:00"))
    assert judge(berlin, at("03-30 02:00:00")).expected_at == at("03-31 01:00:00")
    after = monitor("30 2 * * *", timezone="Europe/Berlin", last_success_at=at("03-31 01:00:10"))
    assert judge(after, at("03-31 02:00:00")).expected_at == at("04-01 00:30:00")


def test_a_failure_is_wrong_until_a_success_and_answers_the_expected_time() -> None:
    failed = Ping(at("01-11 03:02:00"), "failure", exit_status=3, note="disk full")
    found = judge(monitor(failure=failed, last_failure_at=failed.at, pings=(failed,)), at("01-11 03:30:00"))
    assert found.wrong == {"ping_failed": "it failed at 2030-01-11 03:02:00Z with exit status 3: disk full"}
    assert (found.state, found.expected_at, found.look_at) == (
        "down", at("01-12 03:00:00"), at("01-12 03:10:00"),
    )  # fmt: skip


def test_with_a_longest_runtime_a_start_answers_and_its_end_is_due() -> None:
    started = at("01-11 03:00:05")
    running = monitor(max_runtime_seconds=3600, starts={"a": started}, last_start_at=started)
    found = judge(running, at("01-11 03:30:00"))
    assert (found.wrong, found.look_at) == ({}, started + timedelta(hours=1))
    over = judge(running, at("01-11 04:00:05"))
    assert over.wrong.keys() == {"ping_overrun"}
    assert over.look_at == at("01-12 03:10:00")
    # Without one, only an end answers: what starts and dies is noticed by the grace.
    dying = monitor(starts={"": started}, last_start_at=started)
    assert judge(dying, at("01-11 03:10:00")).wrong.keys() == {"no_ping"}


def test_the_time_before_it_was_watched_counts_no_more() -> None:
    changed = monitor("0 4 * * *", watched_from=at("02-01 12:00:00"), last_success_at=at("01-11 03:00:00"))
    assert judge(changed, at("02-01 12:00:00")).expected_at == at("02-02 04:00:00")


def test_a_zone_that_is_gone_is_an_error() -> None:
    with pytest.raises(InvalidInput):
        judge(monitor(timezone="Europe/Atlantis"), at("01-11 03:00:00"))
