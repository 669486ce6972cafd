"""The line for each run that ends, and the count that replaces lines when there are too many."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from uuid import UUID

import pytest

from duly.cli import runlog
from duly.cli.runlog import RunLog
from duly.model import Buried, ClaimedRun, Requeued, Succeeded, to_micros
from duly.worker.executor import Outcome
from duly.worker.handler.errors import error_text

DUE = datetime(2030, 1, 1, 9, 30, tzinfo=UTC)
STARTED = to_micros(DUE) + 3_000
FINISHED = STARTED + 12_000
ERROR = error_text("some.module.Oops", "first\nsecond \x1b[2J" + "x" * 500)


def claimed(attempt: int = 1) -> ClaimedRun:
    run = ClaimedRun()
    run.claim_id, run.job_id, run.ordinal = UUID(int=1), UUID(int=2), 1
    run.name, run.handler, run.attempt, run.scheduled_at = "nightly", "report", attempt, DUE
    return run


def line(run: ClaimedRun, outcome: Outcome | None) -> str:
    """The line for a run, without its colours."""
    return re.sub(r"\x1b[0-9a-f]+\[\d*m", "", runlog.line(run, outcome))


def test_each_outcome_has_its_word() -> None:
    run = claimed()
    said = [
        line(run, outcome)[25:].removeprefix("nightly")
        for outcome in (
            Succeeded(run, STARTED, FINISHED),
            Requeued(run, "retrying", 2.0, STARTED, FINISHED, ERROR),
            Requeued(run, "queued", 5.0, None, None, None, refund=1),
            Requeued(run, "queued", 0.0, None, None, None, refund=1),
            Buried(run, STARTED, FINISHED, ERROR),
            Buried(run, STARTED, FINISHED, ERROR, status="cancelled"),
            None,
        )
    ]
    words = [" ".join(text.split(" attempt ")[0].split()) for text in said]
    assert words == [
        "succeeded", "retrying in 2.0 s", "snoozed for 5.0 s", "returned", "dead", "cancelled",
        "lost (another worker has it)",
    ]  # fmt: skip


def test_a_line_tells_attempt_duration_lag_and_the_error_in_short() -> None:
    run = claimed()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  nightly +succeeded +attempt 1  12 ms  lag 3\.0 ms",
        line(run, Succeeded(run, STARTED, FINISHED)),
    )
    failed = line(run, Buried(run, STARTED, FINISHED, ERROR))
    assert r"Oops: first second \x1b[2Jxxx" in failed
    assert "\n" not in failed
    assert len(failed) < 250
    retried = claimed(attempt=2)
    assert "lag" not in line(retried, Succeeded(retried, STARTED, FINISHED)), "a retry's lag would be its own delay"


async def test_more_lines_than_anybody_reads_are_counted_instead(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("duly.cli.runlog.time.monotonic", lambda: 100.0)
    log, run = RunLog(), claimed()
    for _ in range(runlog.MAX_LINES_PER_SECOND + 7):
        log(run, Succeeded(run, STARTED, FINISHED))
    log(run, None)
    log.flush()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == runlog.MAX_LINES_PER_SECOND + 1
    assert lines[-1].endswith("… and more: 7 succeeded, 1 lost")
    await asyncio.sleep(0)


async def test_a_reader_that_went_away_does_not_stop_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def closed(_: object) -> None:
        nonlocal calls
        calls += 1
        raise BrokenPipeError

    monkeypatch.setattr("duly.cli.runlog.say", closed)
    log, run = RunLog(), claimed()
    for _ in range(3):
        log(run, Succeeded(run, STARTED, FINISHED))
    assert calls == 1
