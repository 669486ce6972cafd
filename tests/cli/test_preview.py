"""`duly preview` and `duly explain`."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from duly.cli.main import execute
from duly.store.pool import Pool
from harness.commands import Ended

Run = Callable[..., Ended]
NEW_YORK = "America/New_York"


@pytest.fixture
def preview(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Ended]:
    """Runs `duly preview` where no store can be reached."""
    for name in [name for name in os.environ if name.startswith("DULY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DULY_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/nowhere")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        code = execute(["preview", *arguments])
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run


# Each case: expression, zone, after (local), options, and the instants that come next.
CASES = [
    ("30 2 * * *", NEW_YORK, "2026-03-08", (), ["2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"]),
    ("*/15 2 * * *", NEW_YORK, "2026-03-08", (), ["2026-03-09T06:00:00Z"]),
    ("*/15 * * * *", NEW_YORK, "2026-03-08T01:30", (), ["2026-03-08T06:45:00Z", "2026-03-08T07:00:00Z"]),
    ("30 1 * * *", NEW_YORK, "2026-11-01", (), ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]),
    (
        "30 1 * * *", NEW_YORK, "2026-11-01", ("--dst-fold", "both"),
        ["2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z", "2026-11-02T06:30:00Z"],
    ),
    (
        "0 * * * *", NEW_YORK, "2026-11-01T00:30", (),
        ["2026-11-01T05:00:00Z", "2026-11-01T06:00:00Z", "2026-11-01T07:00:00Z"],
    ),
    ("15 2 * * *", "Australia/Lord_Howe", "2026-10-04", (), ["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"]),
    ("45 1 * * *", "Australia/Lord_Howe", "2026-04-05", (), ["2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"]),
    ("0 0 * * *", "America/Havana", "2026-03-07T12:00", (), ["2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"]),
    ("0 0 * * *", "America/Havana", "2026-10-31T12:00", (), ["2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"]),
    ("0 12 * * *", "Pacific/Apia", "2011-12-29", (), ["2011-12-29T22:00:00Z", "2011-12-30T22:00:00Z"]),
    (
        "every 24h", NEW_YORK, "2026-03-07T08:00", (),
        ["2026-03-08T13:00:00Z", "2026-03-09T13:00:00Z", "2026-03-10T13:00:00Z"],
    ),
    (
        "DTSTART:20260131T090000\\nRRULE:FREQ=MONTHLY", "UTC", "2026-01-01", (),
        ["2026-01-31T09:00:00Z", "2026-03-31T09:00:00Z", "2026-05-31T09:00:00Z"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("schedule", "zone", "after", "options", "expected"), CASES)
def test_the_listed_cases(
    preview: Run, schedule: str, zone: str, after: str, options: tuple[str, ...], expected: list[str]
) -> None:
    ended = preview(schedule, "--timezone", zone, "--after", after, "--count", str(len(expected)), "--json", *options)
    assert ended.code == 0, ended.err
    document = ended.document
    assert [one["scheduled_at"] for one in document["occurrences"]] == expected
    assert set(document) == {"kind", "canonical", "occurrences"}
    for one in document["occurrences"]:
        assert set(one) == {"scheduled_at", "local", "note", "dropped"}
        # The same instant, in the zone's local time.
        assert datetime.fromisoformat(one["local"]) == datetime.fromisoformat(one["scheduled_at"])


def test_a_dropped_occurrence_is_shown_with_its_note(preview: Run) -> None:
    arguments = ("30 2 * * *", "--timezone", NEW_YORK, "--after", "2026-03-08", "--count", "1", "--dst-gap", "skip")
    dropped, following = preview(*arguments, "--json").document["occurrences"]
    assert dropped["dropped"] is True
    assert dropped["note"] == "local 2026-03-08 02:30 does not exist in America/New_York: dropped"
    assert following == {
        "scheduled_at": "2026-03-09T06:30:00Z", "local": "2026-03-09T02:30:00-04:00", "note": None, "dropped": False,
    }  # fmt: skip
    table = preview(*arguments).out.splitlines()
    assert table[0] == "cron  30 2 * * *"
    assert table[1].split() == ["UTC", "LOCAL", "DAY", "NOTE"]
    assert "(2026-03-08 07:00:00Z)" in table[2]
    assert table[2].rstrip().endswith("dropped")
    assert "2026-03-09 02:30:00-04:00  Mon" in table[3]


def test_a_moved_occurrence_is_shown_with_its_note(preview: Run) -> None:
    found = preview("30 2 * * *", "--timezone", NEW_YORK, "--after", "2026-03-08", "--count", "1", "--json").document
    assert found["occurrences"][0]["note"].endswith("moved to 2026-03-08 03:00")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("0 0 30 2 *",), "never fire"),
        (("0 0 31 4 *",), "never fire"),
        (("77 * * * *",), "minute: 77"),
        (("*/0 * * * *",), "minute"),
        (("5-1 * * * *",), "backwards"),
        (("1,,2 * * * *",), "empty"),
        (("",), "empty"),
        (("* * * *",), "4 fields"),
        (("* * * * * * *",), "7 fields"),
        (("0-99999999/1 * * * *",), "99999999"),
        (("* " * 10_000,), "characters"),
        (("RRULE:FREQ=DAILY;INTERVAL=0",), "INTERVAL"),
        (("RRULE:FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30",), "schedule"),
        (("DTSTART;TZID=America/New_York:20260101T090000\\nRRULE:FREQ=DAILY;UNTIL=20270101T090000",), "UNTIL"),
        (("* * * * *", "--timezone", "../../etc/passwd"), "timezone"),
        (("* * * * *", "--timezone", "right/UTC"), "timezone"),
        (("* * * * *", "--timezone", "localtime"), "timezone"),
        (("* * * * *", "--count", "1001"), "count"),
        (("* * * * *", "--after", "tomorrow"), "after"),
        (("* * * * *", "--dst-gap", "jump"), "dst_gap"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(preview: Run, arguments: tuple[str, ...], says: str) -> None:
    ended = preview(*arguments)
    assert ended.code == 2
    assert ended.out == ""
    assert says in ended.err
    assert ended.err.count("\n") == 1
    assert len(ended.err) < 500


class TestExplain:
    START = datetime(2030, 5, 5, 12, 0, tzinfo=UTC)

    async def at(self, pool: Pool, moment: datetime) -> None:
        await pool.query("update duly.clock set frozen_at = $1", moment)

    async def submit(self, duly: Run, pool: Pool, *arguments: str) -> None:
        await self.at(pool, self.START)
        # In a thread: a command brings an event loop of its own.
        import asyncio

        ended = await asyncio.to_thread(duly, "submit", "greet", "--name", "hourly", *arguments)
        assert ended.code == 0, ended.err

    async def run(self, duly: Run, *arguments: str) -> Ended:
        import asyncio

        return await asyncio.to_thread(duly, "explain", *arguments)

    async def test_the_sentence_first_and_the_facts_under_it(self, duly: Run, pool: Pool) -> None:
        await self.submit(duly, pool, "--schedule", "0 * * * *", "--timezone", NEW_YORK)
        await self.at(pool, self.START + timedelta(minutes=70))
        ended = await self.run(duly, "hourly", "2030-05-05T09:00")
        assert ended.code == 0, ended.err
        lines = ended.out.splitlines()
        assert lines[0] == "2030-05-05 13:00:00Z (Sun 2030-05-05 09:00:00-0400)  overdue"
        assert lines[1].startswith("Overdue by 10 min: no scheduler leads its shard")
        assert lines[2].split() == ["late_seconds", "600.0"]

    async def test_without_a_time_the_last_and_the_next(self, duly: Run, pool: Pool) -> None:
        await self.submit(duly, pool, "--schedule", "0 * * * *")
        await self.at(pool, self.START + timedelta(minutes=70))
        ended = await self.run(duly, "hourly")
        assert "2030-05-05 13:00:00Z (Sun 2030-05-05 13:00:00+0000)  overdue" in ended.out
        assert "Not yet due: in 50 min." in ended.out
        document = (await self.run(duly, "hourly", "--json")).document
        assert document["verdict"] == "overdue"
        assert document["scheduled_at"] == "2030-05-05T13:00:00Z"
        assert document["related"]["verdict"] == "not_due"
        assert document["run"] is None

    async def test_a_range_is_counted_and_listed(self, duly: Run, pool: Pool) -> None:
        await self.submit(duly, pool, "--schedule", "0 * * * *")
        await self.at(pool, self.START + timedelta(minutes=130))
        between = ("--from", "2030-05-05", "--to", "2030-05-05T15:00Z")
        ended = await self.run(duly, "hourly", *between)
        assert ended.out.splitlines()[0] == "3 occurrences: 2 overdue, 1 not due"
        assert len(ended.out.splitlines()) == 5
        lines = (await self.run(duly, "hourly", *between, "--json")).lines
        assert [line["verdict"] for line in lines] == ["overdue", "overdue", "not_due"]
        assert len((await self.run(duly, "hourly", "--from", "2030-05-05", "--json", "--limit", "1")).lines) == 1

    async def test_what_is_wrong_is_said(self, duly: Run, pool: Pool) -> None:
        await self.submit(duly, pool, "--schedule", "0 * * * *")
        for arguments, code, says in (
            (("nothing",), 4, "no job"),
            (("hourly", "soon"), 2, "time"),
            (("hourly", "2030-05-05", "--from", "2030-05-05"), 2, "--from"),
            (("hourly", "--to", "2030-05-05"), 2, "--from"),
            (("hourly", "--from", "2030-05-06", "--to", "2030-05-05"), 2, "end"),
        ):
            ended = await self.run(duly, *arguments)
            assert (ended.code, ended.out) == (code, "")
            assert says in ended.err
