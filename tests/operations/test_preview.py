"""Previews, and a job's lifetime according to the log of its changes. No store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from duly.api.documents import preview_document
from duly.checks import read_moment
from duly.errors import InvalidInput, InvalidSchedule
from duly.formats import exact_span, utc_text
from duly.model import Job, Policy
from duly.operations import preview
from duly.operations.lifetime import Lifetime
from duly.store.changes import Change

NEW_YORK = "America/New_York"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def occurrences(schedule: str, after: str, **options: Any) -> list[str]:
    return [f"{one.scheduled_at:%m-%d %H:%M}" for one in preview(schedule, after=utc(after), **options).occurrences]


def test_kind_and_canonical_text_come_back() -> None:
    found = preview("  0  9 * *  mon ", after=utc("2026-01-01"), count=2)
    assert found.kind == "cron"
    assert preview(found.canonical, after=utc("2026-01-01"), count=2) == found
    assert [one.local.weekday() for one in found.occurrences] == [0, 0]


def test_an_occurrence_at_after_itself_is_not_among_them() -> None:
    assert occurrences("0 9 * * *", "2026-01-01T09:00", count=1) == ["01-02 09:00"]


def test_bounds() -> None:
    bounds = {"start_at": utc("2026-01-03"), "end_at": utc("2026-01-05T09:00")}
    assert occurrences("0 9 * * *", "2026-01-01", **bounds) == ["01-03 09:00", "01-04 09:00", "01-05 09:00"]
    assert occurrences("0 9 * * *", "2026-02-01", **bounds) == []


def test_an_interval_counts_from_start_at_or_from_after() -> None:
    assert occurrences("every 90m", "2026-01-01T00:10", count=2) == ["01-01 01:40", "01-01 03:10"]
    assert occurrences("every 90m", "2026-01-01T00:10", start_at=utc("2026-01-01"), count=2) == [
        "01-01 01:30",
        "01-01 03:00",
    ]


def test_a_one_off_is_shown_even_when_it_is_past() -> None:
    assert occurrences("2025-06-01T09:00:00Z", "2026-01-01") == ["06-01 09:00"]
    assert occurrences("now", "2026-01-01T07:00") == ["01-01 07:00"]


def test_what_is_dropped_is_there_and_does_not_count() -> None:
    found = preview("30 2 * * *", timezone=NEW_YORK, dst_gap="skip", after=utc("2026-03-08"), count=1)
    assert [(one.scheduled_at, one.dropped) for one in found.occurrences] == [
        (utc("2026-03-08T07:00"), True),
        (utc("2026-03-09T06:30"), False),
    ]
    assert preview_document(found)["occurrences"][0] == {
        "scheduled_at": "2026-03-08T07:00:00Z",
        "local": "2026-03-08T03:00:00-04:00",
        "note": "local 2026-03-08 02:30 does not exist in America/New_York: dropped",
        "dropped": True,
    }


@pytest.mark.parametrize("count", [0, -1, 1001, True, 2.5])
def test_the_count_is_bounded(count: Any) -> None:
    with pytest.raises(InvalidInput, match="count"):
        preview("* * * * *", count=count)
    assert len(preview("* * * * *", count=1000).occurrences) == 1000


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"dst_gap": "jump"}, "dst_gap"),
        ({"dst_fold": "third"}, "dst_fold"),
        ({"after": datetime(2026, 1, 1)}, "after"),  # noqa: DTZ001
        ({"start_at": utc("2026-01-02"), "end_at": utc("2026-01-01")}, "end_at"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        preview("0 9 * * *", **options)
    assert caught.value.field == field


def test_a_schedule_that_never_fires_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="never fire"):
        preview("0 0 30 2 *")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-03-08T07:00:00Z", "2026-03-08T07:00"),
        ("2026-03-08T07:00+01:00", "2026-03-08T06:00"),
        ("2026-03-08 09:00", "2026-03-08T13:00"),
        ("2026-03-08", "2026-03-08T05:00"),
        ("2026-03-08T02:30", "2026-03-08T07:00"),  # in a gap: moved as a job's time would be
        ("2026-11-01T01:30", "2026-11-01T05:30"),
    ],
)
def test_times_as_people_write_them(text: str, moment: str) -> None:
    assert read_moment("at", text, timezone=NEW_YORK) == utc(moment)


@pytest.mark.parametrize(
    "text", ["", "now", "yesterday", "0 9 * * *", "every 1h", "2026-13-01", "0001-01-01", "9" * 50]
)
def test_what_is_no_time_is_refused_by_its_field(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_moment("at", text)
    assert caught.value.field == "at"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0404, "40 ms"), (1, "1 s"), (7.5, "7.5 s"), (59.97, "1 min"), (61, "1 min 1 s"), (3600, "1 h"),
        (3659, "1 h"), (93600, "1 d 2 h"), (86401, "1 d"), (-3, "0 ms"),
    ],
)  # fmt: skip
def test_lengths(seconds: float, words: str) -> None:
    assert exact_span(timedelta(seconds=seconds)) == words


def test_clocks_are_as_fine_as_the_time() -> None:
    assert utc_text(utc("2026-01-01T09:00")) == "2026-01-01 09:00:00Z"
    assert utc_text(utc("2026-01-01T09:00:00.125")) == "2026-01-01 09:00:00.125Z"


class TestLifetime:
    CREATED = utc("2026-01-01T00:00")

    def job(self, **changes: Any) -> Job:
        fields: dict[str, Any] = {
            "job_id": UUID(int=7), "shard": 7, "tenant": "default", "name": "n", "handler": "h", "payload": {},
            "payload_ref": None, "kind": "cron", "schedule": "0 9 * * *", "timezone": "UTC", "start_at": None,
            "end_at": None, "max_runs": None, "queue": "default", "priority": 5, "policy": Policy(),
            "dedupe_key": None, "labels": {}, "status": "active", "status_reason": None,
            "next_run_at": utc("2026-01-10T09:00"), "last_run_at": None, "run_count": 0, "created_at": self.CREATED,
            "updated_at": self.CREATED, "version": 1,
        }  # fmt: skip
        return Job(**(fields | changes))

    def hours(self, life: Lifetime, first: str, last: str) -> list[str]:
        return [f"{one.scheduled_at:%d %H}" for one in life.expected(utc(first), utc(last))]

    def test_each_schedule_holds_until_it_was_changed(self) -> None:
        before = {"schedule": "0 6 * * *", "dst_gap": None, "jitter_seconds": None, "end_at": None}
        first = {"schedule": "0 3 * * *", "timezone": "Europe/Berlin", "end_at": "2026-01-02T12:00:00+00:00"}
        life = Lifetime(
            self.job(),
            [
                Change(utc("2026-01-03T12:00"), "changed", {"before": {**before, **first}}),
                Change(utc("2026-01-04T12:00"), "paused", {}),
                Change(utc("2026-01-04T13:00"), "resumed", {}),
                Change(utc("2026-01-05T06:00"), "redefined", {"before": before}),
            ],
        )
        # 03:00 in Berlin (02:00Z) until the end of that schedule; from the third on at six, and from the fifth on at
        # nine. At the very moment of a change, the old schedule still holds.
        assert self.hours(life, "2026-01-01", "2026-01-06") == ["01 02", "02 02", "04 06", "05 06", "05 09"]
        found = life.before(utc("2026-01-03T20:00"))
        assert found is not None
        assert found.scheduled_at == utc("2026-01-02T02:00")
        assert life.before(utc("2026-01-01T01:00")) is None
        after = life.after(utc("2026-01-05T06:00"))
        assert after is not None
        assert after.scheduled_at == utc("2026-01-05T09:00")

    def test_stops_follow_one_another(self) -> None:
        life = Lifetime(
            self.job(status="cancelled", next_run_at=None),
            [
                Change(utc("2026-01-02"), "parked", {"reason": "zone"}),
                Change(utc("2026-01-03"), "paused", {"reason": "hand"}),
                Change(utc("2026-01-04"), "resumed"),
                Change(utc("2026-01-05"), "cancelled"),
            ],
        )
        stops = [life.stop_at(utc(f"2026-01-{day:02}T12:00")) for day in range(1, 7)]
        assert [stop and stop.change.what for stop in stops] == [
            None, "parked", "paused", None, "cancelled", "cancelled",
        ]  # fmt: skip
        assert not life.ended

    def test_a_row_that_knows_more_than_the_log(self) -> None:
        assert Lifetime(self.job(), [Change(utc("2026-01-02"), "paused")]).stop_at(utc("2026-02-01")) is None
        stop = Lifetime(self.job(status="paused", status_reason="why"), []).stop_at(utc("2026-02-01"))
        assert stop is not None
        assert stop.change.reason == "why"

    @pytest.mark.parametrize(
        ("schedule", "kind"),
        [("*/7 * * * *", "cron"), ("0 0 29 2 *", "cron"), ("every 1000h", "interval"), ("RRULE:FREQ=YEARLY", "rrule")],
    )
    def test_the_newest_one_before_a_moment_is_the_last_of_a_walk(self, schedule: str, kind: Any) -> None:
        life = Lifetime(self.job(schedule=schedule, kind=kind), [])
        until = utc("2026-01-01T05:00") if kind == "cron" and "*/7" in schedule else utc("2032-12-31")
        walked = list(life.expected(self.CREATED, until))
        assert life.before(until) == walked[-1]
        assert life.before(walked[-1].scheduled_at) == walked[-1]
