"""The outcome of a run in words, for sentences that people read."""

from __future__ import annotations

from duly.formats import exact_span, utc_text
from duly.model import ErrorInfo, Run
from duly.visible import visible

_MAX_ERROR = 160


def outcome(run: Run) -> str:
    """The outcome of a run, as the second half of a sentence."""
    nth = f"attempt {run.attempt}"
    where = f" on {run.worker}" if run.worker else ""
    if run.status == "succeeded":
        if run.deduplicated:
            return "it succeeded without a call of the handler: its idempotency key had been completed before"
        took = f" after {exact_span(run.finished_at - run.started_at)}" if run.finished_at and run.started_at else ""
        return f"it succeeded in {nth}{took}{where}"
    if run.status == "dead":
        return f"it is dead since {nth}{where}{_error(run.error)}"
    if run.status == "cancelled":
        reason = (run.note or {}).get("reason")
        return "its run was cancelled" + (f": {reason}" if reason else "")
    if run.status == "running":
        since = f" since {utc_text(run.started_at)}" if run.started_at else ""
        return f"it is running{where}{since}, {nth}"
    if run.status == "retrying":
        last = run.attempts[-1].error if run.attempts else None
        when = f"; it is tried again at {utc_text(run.run_at)}" if run.run_at else ""
        return f"{nth} failed{_error(last)}{when}"
    if run.status == "waiting":
        return "it waits for an earlier run of the job to end"
    return "it waits for a worker" + (f" after {nth}" if run.attempt else "")


def _error(error: ErrorInfo | None) -> str:
    if error is None:
        return ""
    text = visible(" ".join(f"{error.type}: {error.message}"[: 4 * _MAX_ERROR].split()))
    return ": " + (text if len(text) <= _MAX_ERROR else text[: _MAX_ERROR - 1] + "…")
