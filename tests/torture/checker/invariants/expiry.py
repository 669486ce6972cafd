"""Runs that no worker started in time are not started, and no others are."""

from __future__ import annotations

from collections.abc import Iterator

from ..facts import SECOND, Facts, Outcome
from ..finding import Finding, Key, moment
from .owed import Deadlines, word_document

NAME = "expiry"
# A worker judges by its own estimate of the database's clock, which is as good as its connection.
_CLOCK_ERROR = SECOND


def check(facts: Facts) -> Iterator[Finding]:
    """A run that no worker has started within its job's `start_within_seconds` ends as missed, unbegun; no other
    claimed run ends as missed.

    No first attempt begins after that time. While faults last a worker may be stopped between its look at the clock and
    the handler's first word.
    """
    deadlines = Deadlines(facts)
    for key, outcomes in facts.outcomes.items():
        for outcome in outcomes:
            if outcome.op == "insert" and outcome.new is not None and outcome.new.get("claim_id") is not None:
                yield from _expired(facts, key, outcome)
    for key, holds in facts.holds.items():
        within = _within(facts, key)
        if within is None or not holds:
            continue
        begin = next((word for word in facts.words.get(key, ()) if word.word == "begin"), None)
        if begin is not None and begin.attempt == 1 and begin.at > deadlines.after(key[1] + within):
            yield Finding(
                NAME,
                f"{facts.called(key)}: its first attempt began at {moment(begin.at)}, although it had expired at "
                f"{moment(key[1] + within)}",
                [word_document(begin)],
            )


def _expired(facts: Facts, key: Key, outcome: Outcome) -> Iterator[Finding]:
    row, at = outcome.new or {}, outcome.transaction.at
    if row["status"] != "missed":
        return
    within = _within(facts, key)
    if within is None or (row.get("note") or {}).get("reason") != "expired":
        yield Finding(
            NAME, f"{facts.called(key)}: claimed, and recorded as missed at {moment(at)} without having expired", [row]
        )
    elif at < key[1] + within - _CLOCK_ERROR:
        yield Finding(
            NAME,
            f"{facts.called(key)}: recorded as expired at {moment(at)}, before it expired at {moment(key[1] + within)}",
            [row],
        )
    for word in facts.words.get(key, ()):
        if word.word == "begin" and word.at < at:
            yield Finding(
                NAME,
                f"{facts.called(key)}: recorded as expired at {moment(at)}, although its handler had begun at "
                f"{moment(word.at)}",
                [row, word_document(word)],
                at=word.at,
                job_id=key[0],
            )


def _within(facts: Facts, key: Key) -> int | None:
    """The job's `start_within_seconds`, in microseconds. No request of the workload changes it."""
    job = facts.jobs.get(key[0])
    seconds = (job.row.get("policy") or {}).get("start_within_seconds") if job and job.versions else None
    return None if seconds is None else int(seconds) * SECOND
