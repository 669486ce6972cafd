"""Every job field with every kind of schedule, in pairs, through fire, retry, pause, resume, change, trigger, redrive
and outage: how often and when each job ran, and what was recorded, must match a brute-force oracle.

A story is one store on a virtual clock, with jobs that cover every pair of values of two fields, and random operations
on them. `DULY_TEST_POLICIES=50` runs 50 stories instead of one (minutes); `DULY_TEST_SEED=7` begins with that seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import fields as fields_of
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from conftest import Server
from duly import Context
from duly.errors import Conflict, InvalidInput, Permanent
from duly.model import DEFAULT_TENANT, POLICY_FIELDS, JobRequest, Policy, make_run_id, parse_run_id
from duly.store import maintenance
from duly.testing import DulyTest, StoreServer, running_server
from duly.timing import jitter_offset
from duly.worker import retry
from harness.waiting import drawn_seed
from policies.calendar import MINUTE, SECOND
from policies.oracle import Ended, Fields, Model, Refused
from policies.pairs import all_pairs

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
STORIES = int(os.environ.get("DULY_TEST_POLICIES", "1"))
SEED = drawn_seed()
JITTERS = (0, 1, 600, 86_400)
# A zone and the local date on which its clocks change: a story begins on the day before.
CHANGES = (
    ("America/New_York", "2026-03-08"), ("America/New_York", "2026-11-01"), ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"), ("Australia/Lord_Howe", "2026-04-05"), ("Australia/Lord_Howe", "2026-10-04"),
    ("America/Havana", "2026-03-08"), ("America/Havana", "2026-11-01"), ("Asia/Kathmandu", "2026-05-05"),
)  # fmt: skip
STEPS = (MINUTE, 7 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR)
OUTAGES = (5 * SECOND, 11 * SECOND, 70 * MINUTE, 7 * HOUR, 26 * HOUR)


class World(DulyTest):
    """A DulyTest that also lets waiting runs go, as the rescuer does, but at once."""

    async def _step(self, target: datetime) -> tuple[int, Sequence[str]]:
        await maintenance.free_waiting(self._pool)
        return await super()._step(target)


@pytest.fixture(scope="session")
def stores(server: Server) -> Iterator[StoreServer]:
    with running_server(server.url) as stores:
        yield stores


class Story:
    def __init__(self, world: World, dice: random.Random) -> None:
        self.world = world
        self.calls = world._operations.for_tenant(DEFAULT_TENANT)
        self.dice = dice
        zone, day = dice.choice(CHANGES)
        noon = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)) - 12 * HOUR
        self.start = noon.astimezone(UTC) + dice.choice((timedelta(0), timedelta(seconds=7, microseconds=250_000)))
        self.zone, self.day = zone, day
        self.horizon = (self.start - 4 * DAY, self.start + 8 * DAY)
        self.models: dict[str, Model] = {}
        self.made: dict[str, int] = {}
        self.told: list[str] = []

    # Values of the fields

    def schedules(self) -> list[str | None]:
        start, day = self.start, self.day
        compact = (start + 2 * HOUR).strftime("%Y%m%dT%H%M00Z")
        until = (start + 20 * HOUR).strftime("%Y%m%dT%H%M00Z")
        return [
            None,
            (start + 3 * HOUR).isoformat(),
            (start - HOUR).isoformat(),
            f"{day}T{self.dice.choice(('00:30', '01:30', '01:45', '02:15', '02:30'))}:00",
            "15,45 0-3 * * *",
            "20 */4 * * *",
            "*/25 30 1,2,12 * * *",
            "every 5h30m",
            "every 100m",
            "FREQ=HOURLY;INTERVAL=4",
            "FREQ=HOURLY;INTERVAL=3;COUNT=2",
            "FREQ=DAILY;COUNT=1",
            f"DTSTART:{compact}\nRRULE:FREQ=HOURLY;INTERVAL=7;COUNT=3",
            f"DTSTART:{compact}\nRRULE:FREQ=HOURLY;INTERVAL=5;UNTIL={until}",
            f"DTSTART;TZID={self.zone}:{day.replace('-', '')}T003000\nRRULE:FREQ=DAILY;BYHOUR=0,1,2;BYMINUTE=30",
        ]

    def values(self) -> dict[str, Sequence[Any]]:
        start = self.start
        return {
            "schedule": self.schedules(),
            "timezone": ("UTC", self.zone, "Asia/Kathmandu"),
            "start_at": (None, start + 2 * HOUR, start - HOUR),
            "end_at": (None, start + 20 * HOUR),
            "max_runs": (None, 1, 3),
            "missed_window": ("SKIP", "RUN_ONCE", "RUN_ALL"),
            "catch_up_window_seconds": (None, 0, 3_600, 86_400),
            "max_missed": (0, 1, 100),
            "overlap": ("skip", "queue", "parallel"),
            "max_queued": (0, 1, 100),
            "max_retries": (0, 2),
            "retry_backoff": ("immediate", "linear", "exponential"),
            "retry_delay_seconds": (0, 900.5, 20_000),
            "retry_max_delay_seconds": (0, 1800, 30_000),
            "timeout_seconds": (1, 315_360_000),
            "jitter_seconds": JITTERS,
            "dst_gap": ("shift", "skip"),
            "dst_fold": ("first", "second", "both"),
            "idempotency_key_template": (Policy().idempotency_key_template, "{{name}}-{{week}}"),
            "queue": ("default", "other"),
            "priority": (0, 9),
            "payload": ({}, {"x": [1]}),
            "payload_ref": (None, "s3://x"),
            "labels": ({}, {"a": "b"}),
            "dedupe_key": (False, True),
            "handler": ("ok", "flaky", "fails", "permanent"),
        }

    # The story

    async def tell(self) -> None:
        await self.world.at(self.start)
        for row in all_pairs(self.values(), self.dice):
            await self.submit(row)
        await self.world.drain()
        self.pass_until(self.start, self.start)
        for _ in range(12):
            before = self.world.now
            if self.dice.random() < 0.3:
                to = before + self.dice.choice(OUTAGES)
                self.note(f"outage until {to}")
                await self.world.at(to)
            else:
                to = self.soon(before + self.dice.choice(STEPS))
                self.note(f"advance until {to}")
                await self.world.advance(until=to)
                self.pass_until(to, before)
            for job_id in self.dice.sample(sorted(self.models), len(self.models) // 4):
                await self.do_something(job_id)
            if self.dice.random() < 0.5:
                await self.world.drain()
                self.pass_until(to, to)
                await self.compare()
        await self.world.drain()
        self.pass_until(self.world.now, self.world.now)
        await self.compare()

    def soon(self, moment: datetime) -> datetime:
        """Returns `moment`, or sometimes the exact time of an occurrence before it."""
        planned = sorted(one.next for one in self.models.values() if one.next and self.world.now < one.next <= moment)
        return self.dice.choice(planned) if planned and self.dice.random() < 0.3 else moment

    def pass_until(self, until: datetime, now: datetime) -> None:
        for model in self.models.values():
            model.pass_until(until, now)

    async def submit(self, row: dict[str, Any]) -> None:
        row = dict(row)
        schedule = row["schedule"]
        if schedule is None or schedule[:3] == "202":
            row |= {"start_at": None, "end_at": None, "max_runs": None}
        policy = Policy(**{name: value for name, value in row.items() if name in POLICY_FIELDS})
        keyed = str(len(self.models)) if row["dedupe_key"] else None
        plain = ("handler", "payload", "payload_ref", "schedule", "timezone", "start_at", "end_at", "max_runs", "queue",
                 "priority", "labels")  # fmt: skip
        request = JobRequest(policy=policy, dedupe_key=keyed, **{name: row[name] for name in plain})
        try:
            job_id = str((await self.calls.submit(request, allow_unknown_handler=True)).job_id)
            refused = None
        except InvalidInput as error:
            refused = error
        names = {one.name for one in fields_of(Fields)}
        kept = {name: value for name, value in row.items() if name in names}
        now = self.world.now
        try:
            if refused is None:
                job = await self.calls.jobs.get(job_id)
                offsets = {seconds: jitter_offset(job.job_id, seconds) for seconds in JITTERS}
            else:
                offsets = dict.fromkeys(JITTERS, timedelta(0))
            if schedule is None:
                model = Model(Fields(**kept | {"schedule": now.isoformat(), "jitter_seconds": 0}), now, row["handler"],
                              offsets, self.horizon)  # fmt: skip
                model.fields = Fields(**kept | {"schedule": now.isoformat()})
                # A job that runs now ignores its catch-up window: it cannot be late.
            else:
                model = Model(Fields(**kept), now, row["handler"], offsets, self.horizon)
        except Refused as refusal:
            if refused is None:
                raise AssertionError(f"{row} was accepted") from refusal
            return
        assert refused is None or any(offsets.values()), f"{row} was refused: {refused}"
        if refused is None:
            self.models[job_id] = model
            self.made[job_id] = 0
            self.note(f"{job_id} = {row}")

    async def do_something(self, job_id: str) -> None:
        model, dice, now = self.models[job_id], self.dice, self.world.now
        dead = [at for at, one in model.ended.items() if one.status == "dead"]
        what = dice.choice(["pause", "resume", "change", "change", "trigger", "redrive" if dead else "change"])
        if model.next is None and not model.paused and what != "redrive":
            what = "trigger"  # other operations on an ended job are for other tests
        name = ""
        value: Any = None
        if what == "change":
            name = dice.choice([one.name for one in fields_of(Fields)])
            value = dice.choice(list(self.values()[name]))
            if name == "schedule" and value is None:
                value = now + HOUR
                value = value.isoformat()
        elif what == "redrive":
            value = dice.choice(dead)
        self.note(f"{now} {what} {job_id} {name} {value}")
        try:
            before = model.trigger(now) if what == "trigger" else None
            if what == "change":
                model.change(now, name, value)
            elif what in ("pause", "resume"):
                getattr(model, what)(now)
            wanted = None
        except Refused as error:
            wanted = error
        try:
            if what == "change":
                await self.calls.jobs.change(job_id, {name: value})
            elif what == "redrive":
                await self.calls.dead_letters.redrive(make_run_id(UUID(job_id), value))
                model.redrive(value, now)
            elif what == "trigger":
                at = parse_run_id((await self.calls.jobs.trigger(job_id)).run_id)
                assert at is not None
                assert before is not None
                assert before - SECOND / 1000 < at[1] <= before
                assert at[1] not in model.unfinished
                assert at[1] not in model.ended
                assert at[1] != model.next
                model.triggered(at[1], now)
            else:
                await getattr(self.calls.jobs, what)(job_id)
        except (Conflict, InvalidInput) as error:
            if wanted is None:
                raise AssertionError(f"{what} {job_id} {name} was refused") from error
        else:
            assert wanted is None, f"{what} {job_id} {name} must be refused: {wanted}"

    # The comparison

    async def compare(self) -> None:
        pool = self.world._pool
        history: dict[str, dict[datetime, Ended]] = {job_id: {} for job_id in self.models}
        for row in await pool.query(
            "select job_id::text, scheduled_at, status, flags, attempt, note ->> 'reason' as reason, "
            "(note ->> 'count')::int as count, (note ->> 'last')::timestamptz as last from duly.history"
        ):
            history[row["job_id"]][row["scheduled_at"]] = Ended(
                row["status"], bool(row["flags"] & 2), row["attempt"], row["reason"], row["count"], row["last"]
            )
        live: dict[str, dict[datetime, tuple[int, datetime | None]]] = {job_id: {} for job_id in self.models}
        for row in await pool.query("select job_id::text, scheduled_at, attempt, state, run_at from duly.runs"):
            run_at = None if row["state"] == "waiting" else row["run_at"]
            live[row["job_id"]][row["scheduled_at"]] = (row["attempt"], run_at)
        for row in await pool.query(
            "select job_id::text, status, status_reason, next_run_at, run_count from duly.jobs"
        ):
            job_id = row["job_id"]
            model = self.models[job_id]
            status = "paused" if model.paused else "ended" if model.next is None else "active"
            assert (row["status"], row["next_run_at"], row["run_count"]) == (
                status, model.next, model.run_count
            ), f"{job_id} has another status, plan or run_count ({row['status_reason']})"  # fmt: skip
            assert history[job_id] == model.ended, f"{job_id} has another history"
            expected = {at: (one.attempt, one.run_at) for at, one in model.unfinished.items()}
            assert live[job_id] == expected, f"{job_id} has other unfinished runs"
            assert self.made[job_id] == model.calls, f"the handler of {job_id} was called a different number of times"

    def note(self, text: str) -> None:
        self.told.append(text)


def make_tasks(story: Story) -> None:
    def task(name: str) -> None:
        async def handler(ctx: Context, x: Any = None) -> None:
            story.made[ctx.job_id] += 1
            if name == "permanent":
                raise Permanent("never")
            if name == "fails" or (name == "flaky" and ctx.attempt == 1):
                raise ValueError("not now")

        story.world.app.task(name=name)(handler)

    for name in ("ok", "flaky", "fails", "permanent"):
        task(name)


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("number", range(STORIES))
async def test_every_job_runs_as_often_and_when_its_fields_say(
    stores: StoreServer, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = SEED + number
    monkeypatch.setattr(retry, "MAX_JITTER", 0.0)
    async with World.open(stores) as world:
        assert isinstance(world, World)
        story = Story(world, random.Random(seed))
        make_tasks(story)
        try:
            await story.tell()
        except BaseException as error:
            concerned = [job_id for job_id in story.models if job_id in str(error)]
            said = [line for line in story.told if not concerned or concerned[0] in line or " until " in line]
            print(f"DULY_TEST_SEED={seed}", *said, sep="\n")
            raise
