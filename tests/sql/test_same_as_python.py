"""The SQL function `duly.submit` accepts the same jobs as the API, and both store them alike.

Each case is a call of the function and a request to the API that say the same, byte for byte where a field is JSON.
Either both accept the job or neither does. If both accept it, the stored rows are compared once the service for SQL
submits has planned the job.

`DULY_TEST_DOOR_SECONDS` makes the random test longer, `DULY_TEST_DOOR_SEED` repeats it with one seed.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

import asyncpg
import httpx
import pytest

from duly.api.server import create_app
from duly.config import Settings
from duly.maintenance.sql_submits import SqlSubmits
from duly.model import DEFAULT_TENANT, JobRequest
from duly.operations import Operations, StoreOperations
from duly.operations.sql_submits import plan_sql_submit
from duly.store.pool import Pool
from harness.scheduler import FrozenClock
from harness.waiting import drawn_seed

NOW = datetime(2031, 3, 8, 9, 30, 15, 250000, tzinfo=UTC)
SECONDS = float(os.environ.get("DULY_TEST_DOOR_SECONDS", "6"))
TYPES = {
    "payload": "jsonb", "labels": "jsonb", "priority": "integer", "max_runs": "integer", "run_at": "timestamptz",
    "start_at": "timestamptz", "end_at": "timestamptz", "policy": "jsonb",
}  # fmt: skip

ODD = [
    *map(chr, range(1, 33)), *map(chr, range(0x7E, 0xA2)), "\u200b", "\u200d", "\u202e", "\u2028", "\u2060", "\ufeff",
    "\ufffe", "\ufffd", "\U0001f600", "e\u0301", "\u0130", "\ufb00", "\U0010ffff", "'", '"', "\\", "$$", "%s", "{", "}",
    "{{name}}", "\\u0000", "\u0000", "\ud800", "\udfff", "v", "\u00a0", "\u3000",
]  # fmt: skip
SCHEDULES = [
    "now", "NOW", " now ", "\tnow\n", "\u00a0now", "Now", "nowv", "vnow", "0 9 * * MON-FRI", "*/5 * * * *", "@daily",
    "@hourly", "every 15m", "every 1s", "every 90s", "every 36h", "PT15M", "P1D", "FREQ=DAILY;COUNT=3",
    "RRULE:FREQ=WEEKLY;BYDAY=MO,WE", "FREQ=MONTHLY;BYMONTHDAY=-1;UNTIL=20401231T000000Z", "0 0 1 jan,nov *",
    "2031-03-09T02:30", "2031-11-02T01:30", "2031-12-31", "2040-02-29T00:00:00Z", "2031-03-08T09:30:15.250Z",
    "2031-03-08T09:30:15.250001+05:30", "2001-01-01T00:00Z", "9999-12-31T00:00:00Z", "9999-12-31T00:00:00.000001Z",
    "1900-01-01T00:00:00Z", "1899-12-31T23:59:59Z", "20310309T0930Z", "2031-W10-6", "0 0 30 2 *", "77 * * * *",
    "* * * *", "* * * * * * *", "every fortnight", "every 0s", "every -5m", "FREQ=NEVER", "FREQ=DAILY;COUNT=0",
    "in 5m", "tomorrow", "every 1.5h", "cron(0 9 * * ? *)", "rate(5 minutes)", "@reboot", "every 1000000d", "P1Y2M",
    "RRULE:FREQ=DAILY\nDTSTART:20310101T000000Z", "0 9 * * *\n", "0 9\n* * *", "2031-02-30T00:00Z", "T09:00", "%", "v",
]  # fmt: skip
ZONES = [
    "UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "America/Argentina/Buenos_Aires", "Etc/GMT+5", "GMT",
    "EST5EDT", "Zulu", "Factory", "localtime", "posixrules", "utc", "europe/berlin", "EUROPE/BERLIN", "Mars/Olympus",
    "../../etc/passwd", "/etc/localtime", "posix/UTC", "right/UTC", "UTC+3", "GMT0BST", "<+03>-3", "Europe/", "/UTC",
    "Europe//Berlin", "leapseconds", "tzdata.zi", "zone.tab", "zone1970.tab", "iso3166.tab", "+00", "Z", "CET",
    "MST7MDT", "Europe/Berlin ", " UTC", "default", "DEFAULT", "LOCAL", "UTC\u200b", "Europe", "W-SU",
    "Etc/Unknown", "A/B/C/D/E",
    "PST", "IST", "x" * 64, "x" * 65,
]  # fmt: skip
NUMBERS = [
    "0", "1", "3", "3.0", "3.00", "1e2", "1E2", "1e+2", "100e-2", "10e-2", "1e0", "0.5", "0.50", "5e-1", "-0", "-0.0",
    "0.0", "1e400", "1e-400", "-1", "-1e-400", "1e308", "1e309", "9" * 4300, "9" * 4301, "3.0000000000000000001",
    "2.9999999999999999999", "3.000001", "0.001", "0.00099999999999999999999999", "0.00099", "86400", "86400.0",
    "86401", "10000", "10001", "100000", "100000.0", "100001", "315360000", "315360000.00000000001", "315360000.1",
    "315360001", "30", "30.0", "1800", "300", "300.00", "1e-7", "1.5e-7", "0.1", "0.30000000000000004",
    "0.3000000000000000444", "4e-320", "2e-324", "1234567.891", "9007199254740993", "1e15", "1e16", '"3"', '"NaN"',
    "true", "false", "null", "[]", "{}", '""', "NaN", "Infinity", "-Infinity", "01", "+1", ".5", "5.", "0x1", "1_000",
    "3.", "1e", '"3.0"',
]  # fmt: skip
CHOICES = [
    "SKIP", "RUN_ONCE", "RUN_ALL", "skip", "queue", "parallel", "immediate", "linear", "exponential", "shift", "first",
    "second", "both", "Skip", "", "skip ", "nonsense",
]  # fmt: skip
TEMPLATES = [
    "{{job_id}}:{{scheduled_at_unix}}", "{{name}}:{{date}}", "{{week}}", "plain", "{{nonsense}}", "{{name", "}}", "",
    " ", "{{ name }}", "{{name}}" * 70, "x" * 500, "x" * 501, "a\nb", "\u200b", "{{hour}}-{{month}}-{{year}}",
]  # fmt: skip
PING_URLS = [
    "https://hc-ping.com/key/nightly", "sentry+http://s:9000/cron/a/b/?c=d", "plain+https://h/x", "ftp://h/x", "h/x",
    "", "pager+https://h/x", "https://u:p@h/", "https://h/#x", "https://h/***", "https://h/" + "x" * 2048,
    "https://h/a\nb",
]  # fmt: skip
PATHS = [
    "[]", '["password"]', '["b", "a", "b", "\\u00fc", "Z"]', '["card.number", "a.b.c"]', '"password"', "null", "7",
    "{}", "[7]",
    "[null]", '[["a"]]', '[""]', '["."]', '["a."]', '[".a"]', '["a..b"]', '["a\\\\.b"]', '["a\\\\"]', '["a\\\\\\\\.b"]',
    '["\\\\."]', '[" "]', json.dumps(["x" * 200]), json.dumps(["x" * 201]), json.dumps(["😀" * 200]),
    json.dumps([f"p{number}" for number in range(32)]), json.dumps([f"p{number}" for number in range(33)]),
    json.dumps(["same"] * 40),
]  # fmt: skip
NUMERIC = [
    "catch_up_window_seconds", "max_missed", "max_queued", "max_retries", "jitter_seconds", "retry_delay_seconds",
    "retry_max_delay_seconds", "timeout_seconds",
]  # fmt: skip
WORDS = ["missed_window", "overlap", "retry_backoff", "dst_gap", "dst_fold"]
MOMENTS = [
    "2031-03-08T09:30:15.250Z", "2031-03-08T10:00:00Z", "2031-03-09T00:00:00+02:00", "2031-12-31T23:59:59.999999Z",
    "2001-01-01T00:00:00Z", "1900-01-01T00:00:00Z", "1899-12-31T23:59:59.999999Z", "1900-01-01T00:00:00+01:00",
    "9998-12-31T23:59:59Z", "2050-06-01T00:00:00.5Z",
]  # fmt: skip
# Only for run_at: in the API a bound of a recurring job may be no later than the year 9998.
LATE_MOMENTS = ["9999-12-31T00:00:00Z", "9999-12-31T00:00:00.000001Z", "9999-12-30T23:59:59.999999Z"]
ENDPOINTS = [
    '{"type": "http", "url": "https://example.org/hook"}', '{"type":"http","url":"https://example.org","method":"get"}',
    '{"type": "http", "url": "ftp://x"}', '{"type": "http", "url": "https://u:p@h/"}', '{"type": "http"}',
    '{"type": "http", "url": "https://example.org/", "headers": {"X-A": "1"}, "secret_headers": {}}',
    '{"type": "http", "url": "https://example.org/", "headers": {"Host": "1"}}', '{"type": "telnet"}', "{}",
    '{"type": "http", "url": "https://example.org/", "headers": {"X": "a\\nb"}}', '{"type": 1}', '{"type": null}',
    '{"type": "command", "argv": ["backup", "--all"]}', '{"type": "command", "argv": "rm -rf /"}',
    '{"type": "command", "argv": []}', '{"type": "command", "argv": ["a"], "env": {"A": "1"}, "cwd": null}',
    '{"type": "command", "argv": ["a", "\\u0001"], "cwd": "/tmp"}', '{"type": "command", "argv": ["a", 1e400]}',
    '{"type": "command", "argv": ["a"], "env": {"DULY_X": "1"}}', '{"type": "http", "url": "https://e.org", "x": 1}',
    '{"type": "http", "url": "https://e.org", "x": ' + "1" * 5_000 + "}", "{nonsense", '{"type": "http", "url": "',
    '{"type": "http", "url": "https://e.org", "x": ' + "[" * 3_000 + "]" * 3_000 + "}",
    '{"type": "command", "argv": ["' + "a" * 65_000 + '"]}', '{"type": "command", "argv": ["' + "a" * 65_600 + '"]}',
    '{"type": "command", "argv": ["' + "a" * 65_499 + '"], "env": {}}', '{"type": "http", "url": "https://\\ud800.org"}',
    '{"type": "command", "argv": ["a\\u0000b"]}', '{"type": "http", "url": "https://e.org/\u200b"}',
    '{"type": "http", "type": "command", "argv": ["x"]}', '{"type": "command", "argv": ["a"], "cwd": ""}',
]  # fmt: skip


@dataclass
class Case:
    """The arguments of one submit. JSON fields are raw texts, the others the values themselves."""

    handler: str = "send"
    fields: dict[str, str] = field(default_factory=dict)
    policy: dict[str, str] = field(default_factory=dict)
    named: bool = True
    """Whether SQL gives a job with an endpoint the name that the API's body has, because the API requires a name."""

    def __str__(self) -> str:
        shown = {"handler": self.handler, **self.fields, **({"policy": self.policy} if self.policy else {})}
        return ", ".join(f"{name}={value!r:.150}" for name, value in shown.items())

    def sql(self) -> tuple[str, list[str]]:
        given = {"handler": self.handler, **self.fields}
        if self.is_object and self.named:
            given.setdefault("name", "http")
        if self.policy:
            given["policy"] = "{" + ", ".join(f'"{name}": {value}' for name, value in self.policy.items()) + "}"
        casts = [f"{name} => ${number}::text::{TYPES.get(name, 'text')}" for number, name in enumerate(given, start=1)]
        return f"select duly.submit({', '.join(casts)}, tenant => 'sql', allow_unknown_handler => true)", [
            *given.values()
        ]

    def body(self) -> str:
        """The same arguments as JSON for the API, with each raw text unchanged."""
        parts = {"handler": self.handler if self.is_object else text_of(self.handler)}
        for name, value in self.fields.items():
            raw = TYPES.get(name) in ("jsonb", "integer")
            parts["schedule" if name == "run_at" else name] = value if raw else text_of(value)
        parts |= self.policy
        if "name" not in parts:
            parts["name"] = '"http"' if self.is_object else parts["handler"]
        return "{" + ", ".join(f'"{name}": {value}' for name, value in parts.items()) + "}"

    @property
    def is_object(self) -> bool:
        return self.handler.lstrip(" \t\n\r").startswith("{")

    @property
    def exempt(self) -> bool:
        """Whether SQL and the API may judge the case differently, for one of these reasons."""
        size = len(self.fields.get("payload", ""))
        return (
            # SQL reads a handler that begins with a brace as JSON; the API reads it as a name if sent as a string.
            (self.is_object and not is_json(self.handler))
            # jsonb has no exponents: 1e309 is an integer of 310 digits in PostgreSQL, and too large a float in Python.
            or any(beyond in self.fields.get("payload", "") for beyond in ("1e309", "1e400"))
            # PostgreSQL counts a payload's bytes with the blanks that it writes between its parts.
            or size > 200_000
        )


def text_of(value: str) -> str:
    return json.dumps(value, ensure_ascii=True)


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return "1" * 4_301 in text or "[" * 900 in text
    return True


class Maker:
    """Makes random cases from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.number = 0

    def case(self) -> Case:
        case = Case()
        self.number += 1
        wanted = self.random.sample([*self.makers], self.random.choice([1, 1, 1, 2, 2, 3]))
        for name in wanted:
            self.makers[name](self, case)
        if "run_at" in case.fields:
            case.fields.pop("schedule", None)
        return case

    def text(self, longest: int) -> str:
        dice = self.random.random()
        if dice < 0.3:
            return "x" * self.random.choice([0, 1, longest - 1, longest, longest + 1])
        if dice < 0.4:
            return "\U0001f600" * self.random.choice([longest, longest + 1])
        odd = self.random.choice(ODD)
        return self.random.choice(["a{}b", "{}", "{}ab", "ab{}"]).replace("{}", odd, 1)

    def _handler(self, case: Case) -> None:
        if self.random.random() < 0.6:
            case.handler = self.random.choice(ENDPOINTS)
        else:
            case.handler = self.text(200)

    def _name(self, case: Case) -> None:
        case.fields["name"] = self.text(200)

    def _queue(self, case: Case) -> None:
        case.fields["queue"] = self.text(100)

    def _payload_ref(self, case: Case) -> None:
        case.fields["payload_ref"] = self.text(2048)

    def _dedupe_key(self, case: Case) -> None:
        # The case's number at the end keeps two cases from having the same key.
        key = self.text(200 - 8)
        case.fields["dedupe_key"] = f"{key}{self.number:08d}" if key else key

    def _schedule(self, case: Case) -> None:
        schedule = self.random.choice(SCHEDULES)
        if self.random.random() < 0.3:
            at = self.random.randrange(len(schedule) + 1)
            odd = self.random.choice([*ODD, *"0123456789*/,-LW#?;=:TZ"])
            schedule = schedule[:at] + odd + schedule[at + self.random.choice([0, 1]) :]
        case.fields["schedule"] = schedule

    def _run_at(self, case: Case) -> None:
        case.fields["run_at"] = self.random.choice([*MOMENTS, *LATE_MOMENTS])

    def _timezone(self, case: Case) -> None:
        case.fields["timezone"] = self.random.choice(ZONES)

    def _bounds(self, case: Case) -> None:
        for name in self.random.choice([("start_at",), ("end_at",), ("start_at", "end_at")]):
            case.fields[name] = self.random.choice(MOMENTS)
        if self.random.random() < 0.7:
            self._schedule(case)

    def _max_runs(self, case: Case) -> None:
        case.fields["max_runs"] = self.random.choice(["0", "1", "-1", "2147483647", "2147483648", "9" * 30, "5"])
        if self.random.random() < 0.7:
            self._schedule(case)

    def _priority(self, case: Case) -> None:
        case.fields["priority"] = self.random.choice(["0", "9", "10", "-1", "5", "99999999999", "-2147483649"])

    def _policy(self, case: Case) -> None:
        for _ in range(self.random.choice([1, 1, 2, 4])):
            dice = self.random.random()
            if dice < 0.6:
                case.policy[self.random.choice(NUMERIC)] = self.random.choice(NUMBERS)
            elif dice < 0.8:
                word = self.random.choice([text_of(self.random.choice(CHOICES)), self.random.choice(NUMBERS)])
                case.policy[self.random.choice(WORDS)] = word
            elif dice < 0.97:
                template = self.random.choice([text_of(self.random.choice(TEMPLATES)), self.random.choice(NUMBERS)])
                case.policy["idempotency_key_template"] = template
            else:
                case.policy[self.random.choice(["max_retris", "MAX_RETRIES", "", "\u200b"])] = "1"

    def _labels(self, case: Case) -> None:
        dice = self.random.random()
        if dice < 0.2:
            labels: str = self.random.choice(
                ["{}", "[]", "null", '"x"', "5", '{"a": 1}', '{"a": null}', '{"a": {}}', "{"]
            )
        elif dice < 0.4:
            many = self.random.choice([31, 32, 33])
            labels = json.dumps({f"k{number}": "v" for number in range(many)})
        else:
            labels = "{" + f"{text_of(self.text(63))}: {text_of(self.text(255))}" + "}"
        case.fields["labels"] = labels

    def _payload(self, case: Case) -> None:
        depth = self.random.choice([1, 150, 195, 205, 2_000])
        nested = self.random.choice(["[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth])
        wide = json.dumps({f"k{number}": number for number in range(self.random.choice([10, 1_000]))})
        number = self.random.choice(
            [*NUMBERS, "9" * 400 + ".5", "-" + "9" * 4300, "-" + "9" * 4301, "0." + "1" * 5_000]
        )
        text = text_of(self.text(self.random.choice([10, 5_000])))
        large = '"' + "y" * self.random.choice([262_141, 262_142, 262_143]) + '"'
        case.fields["payload"] = self.random.choice(
            [nested, wide, number, text, f"[{number}, {text}]", f'{{"a": {number}, {text}: {text}}}', large]
        )

    makers: ClassVar[dict[str, Callable[[Maker, Case], None]]] = {
        "handler": _handler, "name": _name, "queue": _queue, "payload_ref": _payload_ref, "dedupe_key": _dedupe_key,
        "schedule": _schedule, "run_at": _run_at, "timezone": _timezone, "bounds": _bounds, "max_runs": _max_runs,
        "priority": _priority, "policy": _policy, "labels": _labels, "payload": _payload,
    }  # fmt: skip


class Door:
    """Submits cases by SQL and by the API, and reads the stored rows."""

    def __init__(self, pool: Pool, settings: Settings, api: httpx.AsyncClient, caller: Any) -> None:
        self.pool = pool
        self.settings = settings
        self.api = api
        self.caller = caller

    async def by_sql(self, case: Case) -> UUID | str:
        statement, values = case.sql()
        try:
            return UUID(str(await self.caller.fetchval(statement, *values)))
        except asyncpg.PostgresError as error:
            if (error.sqlstate or "")[:2] not in ("22", "23", "54"):
                raise  # the error is not about the arguments
            return str(error)
        except (asyncpg.InterfaceError, UnicodeEncodeError, ValueError) as error:
            return f"not even sent: {error}"

    async def by_api(self, case: Case) -> UUID | str:
        answer = await self.api.post(
            "/api/v1/jobs?allow_unknown_handler=true",
            content=case.body().encode("utf-8", "surrogatepass"),
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code in (200, 201, 400, 413, 422), (case, answer.status_code, answer.text[:500])
        return UUID(answer.json()["job_id"]) if answer.status_code < 300 else answer.text[:300]

    async def plan(self) -> None:
        service = SqlSubmits(self.pool, plan=lambda job: plan_sql_submit(job, self.settings), notified=True)
        service.lead(True)
        while await service.run_once() is not None:
            pass

    async def stored(self, job_ids: list[UUID]) -> dict[UUID, dict[str, Any]]:
        rows = await self.pool.query(
            "select j.*, j.policy::text as policy_text, j.labels::text as labels_text, j.target::text as target_text "
            "from duly.jobs j where job_id = any ($1::uuid[])",
            job_ids,
        )
        return {row["job_id"]: dict(row) for row in rows}


def refusal(row: dict[str, Any] | None, answer: UUID | str) -> str | None:
    """Returns why SQL refused the job, at once or when it was planned; None if it was accepted."""
    if isinstance(answer, str):
        return answer
    assert row is not None
    return row["status_reason"] if row["status"] == "paused" else None


ALIKE = [
    "name", "handler", "target_text", "payload_ref", "kind", "schedule", "timezone", "start_at", "end_at", "max_runs",
    "queue", "priority", "policy_text", "labels_text", "dedupe_key", "created_at",
]  # fmt: skip


def differences(case: Case, one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    found = [name for name in ALIKE if one[name] != other[name]]
    if json.loads(one["payload"]) != json.loads(other["payload"]):
        found.append("payload")
    waits = one["status"] == "active" and other["status"] == "ended"  # runs now, but a scheduler has to fire it
    if not waits:
        found += [name for name in ("status", "run_count", "last_run_at") if one[name] != other[name]]
        # With jitter each job has its own offset.
        if "jitter_seconds" not in (one["policy_text"] or "") and one["next_run_at"] != other["next_run_at"]:
            found.append("next_run_at")
    elif one["schedule"] != "now" or one["next_run_at"] != one["created_at"]:
        found.append("now")
    return [f"{name}: {one.get(name)!r:.120} and {other.get(name)!r:.120}" for name in found]


@pytest.fixture
async def door(pool: Pool, settings: Settings, store_operations: StoreOperations, database_url: str) -> Any:
    await pool.query("update duly.clock set frozen_at = $1", NOW)
    pool.clock = FrozenClock(NOW)
    caller = await asyncpg.connect(database_url)
    transport = httpx.ASGITransport(create_app(store_operations))
    headers = {"Authorization": f"Bearer {(await store_operations.keys.create(role='admin')).text}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as api:
        yield Door(pool, settings, api, caller)
    await caller.close()


async def check(door: Door, cases: list[Case]) -> tuple[int, list[str]]:
    asked = [(case, await door.by_sql(case), await door.by_api(case)) for case in cases]
    await door.plan()
    rows = await door.stored([answer for _, *both in asked for answer in both if isinstance(answer, UUID)])
    taken, wrong = 0, []
    for case, sql, api in asked:
        row = rows.get(sql) if isinstance(sql, UUID) else None
        refused = refusal(row, sql)
        if (refused is None) != isinstance(api, UUID):
            if not case.exempt:
                wrong.append(
                    f"{case}\n    SQL: {refused or 'accepted'}\n    API: {api if isinstance(api, str) else 'accepted'}"
                )
        elif refused is None:
            taken += 1
            assert row is not None
            assert isinstance(api, UUID)
            if different := differences(case, row, rows[api]):
                wrong.append(f"{case}\n    stored differently: {'; '.join(different)}")
    return taken, wrong


async def test_what_the_function_takes_is_what_the_api_takes_and_stored_alike(door: Door) -> None:
    seed = drawn_seed("DULY_TEST_DOOR_SEED")
    print(f"DULY_TEST_DOOR_SEED={seed}")
    maker = Maker(seed)
    until = time.monotonic() + SECONDS
    asked = taken = 0
    wrong: list[str] = []
    while time.monotonic() < until and len(wrong) < 10:
        more, bad = await check(door, [maker.case() for _ in range(100)])
        asked, taken, wrong = asked + 100, taken + more, wrong + bad
    print(f"{asked} cases, {taken} of them accepted by both")
    assert not wrong, f"seed {seed}, {len(wrong)} of {asked}:\n" + "\n".join(wrong[:10])
    assert asked * 0.1 < taken < asked * 0.9


async def test_every_single_value_by_itself(door: Door) -> None:
    """Each schedule, zone, number and endpoint of the lists alone, because the random cases may miss some."""
    cases = [Case(fields={"schedule": schedule}) for schedule in SCHEDULES]
    cases += [Case(fields={"run_at": moment}) for moment in (*MOMENTS, *LATE_MOMENTS)]
    cases += [Case(fields={"timezone": zone, "schedule": schedule}) for zone in ZONES for schedule in ("now", "@daily")]
    cases += [Case(policy={name: number}) for name in NUMERIC for number in NUMBERS]
    cases += [Case(policy={name: text_of(word)}) for name in WORDS for word in CHOICES]
    cases += [Case(policy={"idempotency_key_template": text_of(template)}) for template in TEMPLATES]
    cases += [Case(policy={"ping_url": text_of(url)}) for url in PING_URLS]
    cases += [Case(policy={"ping_url": other}) for other in ("null", "7", "[]", "{}", "true")]
    cases += [Case(policy={"secret_fields": paths}) for paths in PATHS]
    cases += [Case(policy={"secret_fields": json.dumps([f"a{odd}b", odd])}) for odd in ODD]
    cases += [Case(handler=endpoint) for endpoint in ENDPOINTS]
    cases += [Case(fields={"name": odd}) for odd in ODD]
    cases += [Case(fields={"labels": json.dumps({"k": odd})}) for odd in ODD]
    cases += [Case(fields={"payload": json.dumps({odd: odd})}) for odd in ODD]
    _, wrong = await check(door, cases)
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong[:20])


async def test_an_endpoint_without_a_name_is_named_as_python_names_it(door: Door, operations: Operations) -> None:
    for endpoint in (
        '{"type": "http", "url": "https://example.org/hooks/7"}',
        '{"type": "command", "argv": ["/bin/ls"]}',
    ):
        sql = await door.by_sql(Case(handler=endpoint, fields={"schedule": "every 1h"}, named=False))
        twin = await operations.submit(JobRequest(json.loads(endpoint), schedule="every 1h"))
        await door.plan()
        assert isinstance(sql, UUID)
        rows = await door.stored([sql, twin.job_id])
        assert rows[sql]["name"] == rows[twin.job_id]["name"] != rows[sql]["handler"]


async def test_times_that_no_interface_knows_are_refused(door: Door) -> None:
    for moment in ("infinity", "-infinity", "20000-01-01", "4000-01-01 BC", "9999-12-31 23:59:59.999999"):
        for argument in ("run_at", "start_at", "end_at"):
            refused = await door.by_sql(Case(fields={argument: moment}))
            assert isinstance(refused, str)
            assert f"{argument}: must lie between" in refused


async def test_the_same_call_is_the_same_job_from_every_session(door: Door) -> None:
    case = Case(
        fields={"schedule": "every 1h", "start_at": "2032-01-01T00:00:00Z", "dedupe_key": "k"},
        policy={"timeout_seconds": "0.30000000000000004"},
    )
    first = await door.by_sql(case)
    for settings in ("timezone = 'Asia/Tokyo'", "extra_float_digits = 0", "datestyle = 'SQL, DMY'", "search_path = ''"):
        await door.caller.execute(f"set {settings}")
        assert await door.by_sql(case) == first, settings
    assert isinstance(first, UUID)
    assert (await door.stored([first]))[first]["policy_text"] == '{"timeout_seconds": 0.30000000000000004}'


@pytest.mark.parametrize("bound", ["start_at", "end_at", "max_runs"])
async def test_a_one_off_has_no_bounds(door: Door, bound: str) -> None:
    value = "3" if bound == "max_runs" else "2040-01-01T00:00:00Z"
    for fields in ({}, {"schedule": "now"}, {"run_at": "2035-01-01T00:00:00Z"}):
        refused = await door.by_sql(Case(fields={**fields, bound: value}))
        assert isinstance(refused, str)
        assert refused.startswith(f"duly.submit: {bound}: is for recurring jobs")


async def test_a_one_off_with_jitter_is_planned_by_python(door: Door, pool: Pool) -> None:
    sql = await door.by_sql(Case(fields={"run_at": "2035-01-01T00:00:00Z"}, policy={"jitter_seconds": "600"}))
    assert isinstance(sql, UUID)
    await door.plan()
    row = (await door.stored([sql]))[sql]
    assert row["status"] == "active"
    assert timedelta(0) <= row["next_run_at"] - datetime(2035, 1, 1, tzinfo=UTC) <= timedelta(seconds=600)


# Limits


async def test_the_default_limit_of_tenants_holds_for_sql_too(
    pool: Pool, settings: Settings, database_url: str, store_operations: StoreOperations
) -> None:
    limited = settings.model_copy(update={"tenant_max_jobs": 2})
    caller = await asyncpg.connect(database_url)
    # Before the service stores the limit, there is none.
    await caller.fetchval("select duly.submit('x', schedule => 'every 1h', tenant => 'early')")
    service = SqlSubmits(pool, plan=lambda job: plan_sql_submit(job, limited), notified=True, tenant_max_jobs=2)
    service.lead(True)
    await service.run_once()
    within = (await StoreOperations.open(pool, limited)).for_tenant(DEFAULT_TENANT)
    await within.submit(JobRequest("x", schedule="every 1h"))
    await caller.fetchval("select duly.submit('x', schedule => 'every 1h')")
    for tenant in ("default", "early"):
        if tenant == "early":
            # The job that the tenant had before the limit counts.
            await caller.fetchval("select duly.submit('x', schedule => 'every 1h', tenant => 'early')")
        with pytest.raises(asyncpg.ProgramLimitExceededError, match="tenant"):
            await caller.fetchval("select duly.submit('x', schedule => 'every 1h', tenant => $1)", tenant)
    with pytest.raises(Exception, match="0 more active or paused jobs"):
        await within.submit(JobRequest("x", schedule="every 1h"))
    # A tenant's own limit overrides the default, and the default can be removed again.
    await store_operations.tenants.set("early", max_jobs=3)
    await caller.fetchval("select duly.submit('x', schedule => 'every 1h', tenant => 'early')")
    free = SqlSubmits(pool, plan=lambda job: plan_sql_submit(job, settings), notified=True, payload_max_bytes=100)
    free.lead(True)
    await free.run_once()
    for _ in range(3):
        await caller.fetchval("select duly.submit('x', schedule => 'every 1h')")
    with pytest.raises(asyncpg.InvalidParameterValueError, match="at most 100 bytes"):
        await caller.fetchval("select duly.submit('x', payload => to_jsonb(repeat('x', 100)))")
    # Those jobs came while there was no limit. When the limit is back, they count.
    service.lead(True)
    await service.run_once()
    with pytest.raises(asyncpg.ProgramLimitExceededError, match="tenant"):
        await caller.fetchval("select duly.submit('x', schedule => 'every 1h')")
    await caller.close()
