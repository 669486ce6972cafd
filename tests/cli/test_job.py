"""Submitting, finding and changing jobs from the command line."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from rich.console import Console

from duly.cli.output import one_line
from duly.config import Settings
from duly.formats import rough_span
from harness.commands import Ended

Run = Callable[..., Ended]
JOB_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def submitted(duly: Run, *arguments: str) -> str:
    """Submit, and return the id that was printed."""
    ended = duly("submit", *arguments)
    assert ended.code == 0, ended.err
    job_id = ended.out.split()[0]
    assert JOB_ID.fullmatch(job_id)
    return job_id


def shown(duly: Run, job: str) -> dict[str, Any]:
    document = duly("job", "show", job, "--json").document
    assert isinstance(document, dict)
    return document


def test_submit_prints_the_id_and_the_next_occurrence(duly: Run) -> None:
    ended = duly("submit", "greet", "--schedule", "0 9 * * MON", "--timezone", "America/New_York", "--name", "weekly")
    assert ended.code == 0
    assert re.fullmatch(rf"{JOB_ID.pattern}  weekly  next \d{{4}}-\d\d-\d\d 1[34]:00:00Z \(in .+\)\n", ended.out), (
        ended.out
    )
    assert "to run now" in duly("submit", "greet").out


def test_submit_takes_every_field_of_a_job(duly: Run, tmp_path: Path) -> None:
    (tmp_path / "payload.json").write_text('\ufeff{"name": "Zoë"}', encoding="utf-8")
    ended = duly(
        *("submit", "greet", "--payload", "@payload.json", "--payload-ref", "s3://bucket/key", "--name", "greeting"),
        *("--queue", "mail", "--priority", "9", "--dedupe-key", "k-1", "--label", "team=ops", "--label", "note=a=b"),
        *("--schedule", "every 15m", "--timezone", "Europe/Berlin", "--start-at", "2030-01-01T00:00:00+01:00"),
        *("--end-at", "2031-01-01T00:00:00Z", "--max-runs", "7", "--dst-gap", "skip", "--dst-fold", "both"),
        *("--jitter-seconds", "3", "--missed-window", "run_all", "--catch-up-window-seconds", "60"),
        *("--max-missed", "5", "--overlap", "queue", "--max-queued", "4", "--max-retries", "2"),
        *("--retry-backoff", "linear", "--retry-delay-seconds", "1.5", "--retry-max-delay-seconds", "20"),
        *("--timeout-seconds", "9", "--idempotency-key-template", "{{name}}:{{date}}", "--json"),
    )
    assert ended.code == 0, ended.err
    document = ended.document
    expected = {
        "tenant": "default", "name": "greeting", "handler": "greet", "payload": {"name": "Zoë"},
        "payload_ref": "s3://bucket/key", "timezone": "Europe/Berlin", "start_at": "2029-12-31T23:00:00Z",
        "end_at": "2031-01-01T00:00:00Z", "max_runs": 7, "queue": "mail", "priority": 9, "dedupe_key": "k-1",
        "labels": {"team": "ops", "note": "a=b"}, "dst_gap": "skip", "dst_fold": "both", "jitter_seconds": 3,
        "missed_window": "RUN_ALL", "catch_up_window_seconds": 60, "max_missed": 5, "overlap": "queue",
        "max_queued": 4, "max_retries": 2, "retry_backoff": "linear", "retry_delay_seconds": 1.5,
        "retry_max_delay_seconds": 20, "timeout_seconds": 9, "idempotency_key_template": "{{name}}:{{date}}",
        "status": "active", "last_run_at": None,
    }  # fmt: skip
    assert document == {**document, **expected}
    assert document["next_run_at"].endswith("Z")


def test_submit_reads_a_payload_from_standard_input(duly: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"name": "pipe"}')))
    assert duly("submit", "greet", "--payload", "-", "--json").document["payload"] == {"name": "pipe"}


def test_a_run_at_without_an_offset_is_in_the_jobs_own_zone(duly: Run) -> None:
    at = ("--run-at", "2030-01-15T09:30", "--timezone", "America/New_York", "--json")
    assert duly("submit", "greet", *at).document["next_run_at"] == "2030-01-15T14:30:00Z"
    assert duly("submit", "greet", "--run-at", "2030-01-15T09:30:00Z", "--json").document["next_run_at"] == (
        "2030-01-15T09:30:00Z"
    )


def test_submit_with_an_app_uses_the_tasks_own_defaults(project: Path, duly: Run) -> None:
    document = duly("submit", "report", "--app", "tasks_of_test:app", "--json").document
    assert (document["queue"], document["priority"], document["max_retries"]) == ("reports", 7, 9)
    document = duly("submit", "report", "--app", "tasks_of_test:app", "--queue", "mine", "--json").document
    assert (document["queue"], document["priority"]) == ("mine", 7)


def test_submitting_the_same_job_again_under_its_key_changes_nothing(duly: Run) -> None:
    first = submitted(duly, "greet", "--schedule", "every 1h", "--dedupe-key", "once")
    again = duly("submit", "greet", "--schedule", "every 1h", "--dedupe-key", "once")
    assert again.out.startswith(first)
    assert "was there already" in again.out
    assert len(duly("job", "list", "--json").lines) == 1


def test_list_filters_and_says_when_there_is_more(duly: Run) -> None:
    hourly = submitted(duly, "greet", "--schedule", "every 1h", "--name", "hourly", "--label", "team=ops")
    daily = submitted(duly, "greet", "--schedule", "0 0 * * *", "--name", "daily", "--queue", "nightly")
    assert duly("job", "pause", "daily").code == 0

    def listed(*arguments: str) -> list[str]:
        ended = duly("job", "list", "--json", *arguments)
        assert ended.code == 0, ended.err
        return [document["job_id"] for document in ended.lines]

    assert listed() == [daily, hourly]
    assert listed("--status", "active") == [hourly]
    assert listed("--status", "paused") == [daily]
    assert listed("--queue", "nightly") == [daily]
    assert listed("--name", "hourly") == [hourly]
    assert listed("--label", "team=ops") == [hourly]
    assert listed("--label", "team=dev") == []
    limited = duly("job", "list", "--json", "--limit", "1")
    assert [document["job_id"] for document in limited.lines] == [daily]
    assert "more than 1" in limited.err
    table = duly("job", "list")
    assert table.err == ""
    assert re.search(rf"{hourly} +hourly +active +every 1h", table.out)
    assert re.search(rf"{daily} +daily +paused +0 0 \* \* \* UTC", table.out)
    assert duly("job", "list", "--name", "nobody") == Ended(0, "", "no jobs\n")


def test_list_goes_through_as_many_pages_as_it_takes(duly: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from duly.cli import backend

    monkeypatch.setattr(backend, "PAGE", 2)
    made = [submitted(duly, "greet", "--schedule", "every 1h") for _ in range(5)]
    assert [document["job_id"] for document in duly("job", "list", "--json").lines] == made[::-1]
    for _ in range(4):
        assert duly("job", "trigger", made[0]).code == 0
    assert len(duly("job", "runs", made[0], "--json").lines) == 4
    assert "more than 3" in duly("job", "runs", made[0], "--limit", "3").err


def test_a_job_is_found_by_id_by_its_beginning_and_by_name(duly: Run) -> None:
    job_id = submitted(duly, "greet", "--schedule", "every 1h", "--name", "hourly greeting")
    for text in (job_id, job_id[:13], job_id.upper(), "hourly greeting"):
        assert shown(duly, text)["job_id"] == job_id
    other = submitted(duly, "greet", "--schedule", "every 1h", "--name", "hourly greeting")
    ambiguous = duly("job", "show", "hourly greeting")
    assert ambiguous.code == 2
    assert job_id in ambiguous.err
    assert other in ambiguous.err


def test_show_tells_what_the_job_does_next_and_leaves_out_what_is_usual(duly: Run) -> None:
    submitted(
        duly,
        "greet",
        "--schedule",
        "0 9 * * *",
        "--name",
        "morning",
        "--payload",
        '{"name": "Ada"}',
        "--max-retries",
        "8",
    )
    out = duly("job", "show", "morning").out
    assert re.search(r"^schedule +0 9 \* \* \* UTC$", out, re.MULTILINE)
    assert re.search(r'^payload +\{"name": "Ada"\}$', out, re.MULTILINE)
    assert re.search(r"^max_retries +8$", out, re.MULTILINE)
    assert re.search(r"^next +\d{4}-\d\d-\d\d 09:00:00Z \(in ", out, re.MULTILINE)
    assert len(re.findall(r"09:00:00Z", out)) == 5
    assert "max_missed" not in out


def test_pause_and_resume_stop_and_restart_the_schedule(duly: Run) -> None:
    job_id = submitted(duly, "greet", "--schedule", "every 1h")
    paused = duly("job", "pause", job_id, "--reason", "too loud")
    assert paused.code == 0
    assert "paused" in paused.out
    assert shown(duly, job_id)["status"] == "paused"
    assert shown(duly, job_id)["next_run_at"] is None
    assert "too loud" in duly("job", "show", job_id).out
    assert duly("job", "pause", job_id).code == 0, "a paused job can be paused again"
    resumed = duly("job", "resume", job_id, "--json").document
    assert resumed["status"] == "active"
    assert resumed["next_run_at"] is not None


def test_trigger_queues_one_extra_run_and_leaves_the_schedule_alone(duly: Run) -> None:
    job_id = submitted(duly, "greet", "--schedule", "every 1h")
    planned = shown(duly, job_id)["next_run_at"]
    triggered = duly("job", "trigger", job_id, "--json").document
    assert triggered["job_id"] == job_id
    assert [(run["run_id"], run["status"]) for run in duly("job", "runs", job_id, "--json").lines] == [
        (triggered["run_id"], "queued")
    ]
    assert triggered["status"] == "queued"
    assert shown(duly, job_id)["next_run_at"] == planned
    # Runs of this job do not overlap, and the first is unfinished.
    assert "waiting" in duly("job", "trigger", job_id).out


def test_cancel_ends_a_job_and_what_waits_of_it(duly: Run) -> None:
    job_id = submitted(duly, "greet", "--schedule", "every 1h")
    assert duly("job", "trigger", job_id).code == 0
    assert duly("job", "cancel", job_id, "--json").document["status"] == "cancelled"
    assert [run["status"] for run in duly("job", "runs", job_id, "--json").lines] == ["cancelled"]
    for command in ("pause", "resume", "trigger"):
        refused = duly("job", command, job_id)
        assert refused.code == 5
        assert "cancelled" in refused.err


def test_runs_are_documents_as_the_api_gives_them(duly: Run) -> None:
    job_id = submitted(duly, "greet")
    (run,) = duly("job", "runs", job_id, "--json").lines
    named = (
        "run_id job_id scheduled_at status attempt started_at finished_at worker idempotency_key missed error result"
    )
    assert {*named.split(), "attempts"} <= run.keys()
    assert run["scheduled_at"].endswith("Z")
    assert datetime.fromisoformat(run["scheduled_at"]).tzinfo is not None
    assert run["idempotency_key"].startswith(job_id)
    assert re.search(r"Z +queued +0", duly("job", "runs", job_id).out)


def test_the_table_of_runs_says_why_and_when(duly: Run, settings: Settings) -> None:
    """Missed occurrences with their number and the rule, a run that is late on purpose, and the time of a retry."""
    job_id = submitted(duly, "greet", "--schedule", "every 1h")
    rows = """
        insert into duly.history (job_id, scheduled_at, finished_at, attempt, flags, status, note, started_at)
        values
            ($1, duly.now() - interval '3 hours', duly.now(), 0, 0, 'missed', jsonb_build_object('reason', 'RUN_ONCE',
                'count', 7, 'first', timestamptz '2026-01-05 09:00Z', 'last', timestamptz '2026-01-05 15:00Z'), null),
            ($1, duly.now() - interval '2 hours', duly.now(), 0, 0, 'skipped', jsonb_build_object('reason', 'overlap',
                'overlap', 'skip', 'unfinished', timestamptz '2026-01-05 16:00Z'), null),
            ($1, duly.now() - interval '1 hour', duly.now(), 1, 2, 'succeeded', null, duly.now())
    """
    retrying = """
        insert into duly.runs (job_id, scheduled_at, run_at, fired_at, shard, priority, attempt, state, queue)
        values ($1, duly.now(), '2031-01-05 09:00Z', duly.now(), 0, 5, 1, 'retrying', 'default')
    """

    async def record() -> None:
        connection = await asyncpg.connect(settings.database_url)
        for statement in (rows, retrying):
            await connection.execute(statement, UUID(job_id))
        await connection.close()

    asyncio.run(record())
    again, late, skipped, missed = duly("job", "runs", job_id).out.splitlines()[1:]
    assert re.search(r"retrying .*again at 2031-01-05 09:00:00Z", again)
    assert re.search(r"succeeded +1 +60 min missed", late)
    assert "overlap skip: the run of 2026-01-05 16:00:00Z was unfinished" in skipped
    assert "7 occurrences from 2026-01-05 09:00:00Z to 2026-01-05 15:00:00Z: RUN_ONCE" in missed
    run_id = json.loads(duly("job", "runs", job_id, "--json").out.splitlines()[0])["run_id"]
    assert "2031-01-05 09:00:00Z" in duly("run", "show", run_id).out


def test_a_job_whose_zone_is_gone_is_shown_with_the_reason(duly: Run, settings: Settings) -> None:
    job_id = submitted(duly, "greet", "--schedule", "0 9 * * *", "--timezone", "Europe/Berlin")

    async def lose_the_zone() -> None:
        connection = await asyncpg.connect(settings.database_url)
        await connection.execute("update duly.jobs set timezone = 'Mars/Olympus'")
        await connection.close()

    asyncio.run(lose_the_zone())
    shown_now = duly("job", "show", job_id)
    assert shown_now.code == 0, shown_now.err
    assert re.search(r"schedule +0 9 \* \* \* Mars/Olympus", shown_now.out)
    assert re.search(r"next +timezone: no zone Mars/Olympus", shown_now.out)
    assert duly("job", "show", job_id, "--json").document["timezone"] == "Mars/Olympus"


def test_tables_are_cut_to_the_terminal_but_not_in_a_pipe(duly: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "n" * 150
    job_id = submitted(duly, "greet", "--name", long, "--schedule", "every 1h")
    assert long in duly("job", "list").out
    monkeypatch.setattr("duly.cli.output._console", lambda: Console(width=90))
    lines = duly("job", "list").out.splitlines()
    assert max(map(len, lines)) <= 90
    assert job_id in lines[-1], "an id that is cut is of no use"
    assert "active" in lines[-1]


def test_spans_read_as_a_person_would_say_them() -> None:
    said = {
        0: "0.0 ms", 0.0004: "0.4 ms", 0.012: "12 ms", 0.9996: "1.0 s", 2.04: "2.0 s", 59.7: "60 s", 300: "5 min",
        7200: "2 h", 86400 * 3: "3 d", -2: "-2.0 s",
    }  # fmt: skip
    assert {seconds: rough_span(seconds) for seconds in said} == said


def test_text_from_elsewhere_cannot_steer_the_terminal() -> None:
    assert one_line("a\nb\x1b[31m\x07c\u202ed") == r"a b\x1b[31m\x07c\u202ed"
    assert one_line("x" * 300, 10) == "xxxxxxxxx…"
    assert json.dumps(one_line("ok")) == '"ok"'
