"""One readable line for each run that ends, printed by `duly up` and `duly worker`."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from datetime import datetime
from typing import Any

from duly.cli.output import coloured, one_line, say
from duly.formats import rough_span
from duly.logs import json_line, moment_text
from duly.model import Buried, ClaimedRun, Expired, Requeued, Succeeded, make_run_id, to_micros
from duly.worker.executor import Outcome

# Nobody reads more lines per second, and writing them would slow the runs down: further runs are only counted.
MAX_LINES_PER_SECOND = 50


class RunLog:
    """An observer for `running_worker`. Called for every run, so it prints little and never fails."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._second = 0
        self._left = 0
        self._unshown: Counter[str] = Counter()
        self._closed = False

    def __call__(self, run: ClaimedRun, outcome: Outcome | None) -> None:
        if self._closed:
            return
        now = int(time.monotonic())
        if now != self._second:
            self._second, self._left = now, MAX_LINES_PER_SECOND
        if self._left > 0:
            self._left -= 1
            self._print(json_of(run, outcome) if self._as_json else line(run, outcome))
            return
        if not self._unshown:
            asyncio.get_running_loop().call_later(1, self.flush)
        self._unshown[_status(outcome)[0]] += 1

    def flush(self) -> None:
        """Say how many runs were not shown one by one."""
        counts, self._unshown = self._unshown, Counter()
        if counts and self._as_json:
            self._print(json_line({**_head("more runs ended"), "fields": dict(counts)}))
        elif counts:
            shown = ", ".join(f"{count} {coloured(word)}" for word, count in counts.most_common())
            self._print(f"{_clock()}  … and more: {shown}")

    def _print(self, text: str) -> None:
        if self._closed:
            return
        try:
            say(text)
        except (OSError, ValueError):
            # The reader is gone (`duly worker | head`); the runs matter more than their lines.
            self._closed = True


def line(run: ClaimedRun, outcome: Outcome | None) -> str:
    """`2030-01-01 09:30:00.004  nightly-report        succeeded          attempt 1  12 ms  lag 3.0 ms`"""
    word, detail = _status(outcome)
    shown = f"{word} {detail}".strip()
    parts = [
        _clock(),
        f"{one_line(run.name, 60):<20}",
        coloured(shown, like=word) + " " * max(0, 17 - len(shown)),
        f"attempt {run.attempt}",
    ]
    if outcome is not None and outcome.started_us is not None:
        if outcome.finished_us is not None:
            parts.append(rough_span((outcome.finished_us - outcome.started_us) / 1e6))
        if run.attempt == 1:
            # The lag of a retry would mostly be the retry delay of its job.
            parts.append(f"lag {rough_span(max(0, outcome.started_us - to_micros(run.scheduled_at)) / 1e6)}")
    if not isinstance(outcome, Succeeded) and outcome is not None and outcome.error is not None:
        parts.append(_short_error(outcome.error))
    return "  ".join(parts)


def json_of(run: ClaimedRun, outcome: Outcome | None) -> str:
    """The same as a log line in JSON."""
    word, detail = _status(outcome)
    fields: dict[str, Any] = {"status": word}
    if outcome is not None and outcome.started_us is not None and outcome.finished_us is not None:
        fields["seconds"] = (outcome.finished_us - outcome.started_us) / 1e6
    if not isinstance(outcome, Succeeded) and outcome is not None and outcome.error is not None:
        fields["error"] = _short_error(outcome.error)
    return json_line(
        {
            **_head(f"{word} {detail}".strip()),
            "job_id": str(run.job_id),
            "job": run.name,
            "run_id": make_run_id(run.job_id, run.scheduled_at),
            "attempt": run.attempt,
            "fields": fields,
        }
    )


def _head(message: str) -> dict[str, str]:
    return {"time": moment_text(time.time()), "level": "INFO", "logger": "duly.runs", "message": message}


def _status(outcome: Outcome | None) -> tuple[str, str]:
    """The word for the outcome, and its detail."""
    match outcome:
        case None:
            return "lost", "(another worker has it)"
        case Succeeded():
            return "succeeded", ""
        case Buried():
            return outcome.status, ""
        case Expired():
            return "missed", f"(not started within {rough_span(outcome.start_within_seconds)})"
        case Requeued(state="retrying"):
            return "retrying", f"in {rough_span(outcome.delay)}"
        case Requeued() if outcome.delay > 0:
            return "snoozed", f"for {rough_span(outcome.delay)}"
        case Requeued():
            return "returned", ""


def _short_error(text: str) -> str:
    error = json.loads(text)
    return one_line(f"{error['type'].rpartition('.')[2]}: {error['message']}", 100)


def _clock() -> str:
    return datetime.now().isoformat(" ", "milliseconds")  # noqa: DTZ005 - as log lines do, in local time
