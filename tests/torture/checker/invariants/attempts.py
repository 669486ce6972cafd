"""Attempts are contiguous."""

from __future__ import annotations

from collections.abc import Iterator

from ..facts import Facts
from ..finding import Finding, Key, moment

NAME = "attempts"


def check(facts: Facts) -> Iterator[Finding]:
    """The attempts of a run are 1, 2, … n, without gaps or repeats; a redrive starts again at 1.

    A failure or a crash counts as an attempt; a snooze, a return at shutdown or a run that has expired does not. The
    record and the handler have the attempt number of the claim. There are at most `max_retries` attempts after the
    first.
    """
    stale = {id(write.row.new) for write in facts.token_writes if write.hold is None or write.gone_since is not None}
    most_of: dict[str, int] = {}
    for key, holds in facts.holds.items():
        redriven = [move.transaction.index for move in facts.moves[key] if move.before == "dead"]
        expected, previous = 1, -1
        rows = {
            str(row["claim_id"]): (transaction, row)
            for transaction, row in facts.attempts.get(key, ())
            if id(row) not in stale
        }
        for hold in holds:
            if any(previous < index < hold.begun.index for index in redriven):
                expected = 1
            if hold.attempt != expected:
                yield Finding(
                    NAME,
                    f"{facts.called(key)}: claimed at {moment(hold.begun.at)} as attempt {hold.attempt}; it should be "
                    f"attempt {expected}",
                    [
                        {"claim": one.claim_id, "attempt": one.attempt, "at": moment(one.begun.at), "ended": one.how}
                        for one in holds
                    ],
                )
            transaction, row = rows.get(hold.claim_id, (None, None))
            if transaction is not None and row is not None and int(row["attempt"]) != hold.attempt:
                yield Finding(
                    NAME,
                    f"{facts.called(key)}: attempt {row['attempt']} was recorded at {moment(transaction.at)} for the "
                    "claim of attempt "
                    f"{hold.attempt}",
                    [row],
                )
            expected, previous = hold.attempt + (row is not None), hold.begun.index
        yield from _outcomes(facts, key)
        yield from _too_many(facts, key, most_of)


def _outcomes(facts: Facts, key: Key) -> Iterator[Finding]:
    for event in facts.outcomes.get(key, ()):
        if event.op != "insert" or event.new is None or event.new.get("claim_id") is None:
            continue
        hold = facts.hold_of.get((str(event.new["claim_id"]), key))
        begun = event.new["status"] != "missed"  # a run that has expired was claimed, but not begun
        if hold is not None and int(event.new["attempt"]) != hold.attempt - (not begun):
            yield Finding(
                NAME,
                f"{facts.called(key)}: recorded as {event.new['status']} at {moment(event.transaction.at)} in attempt "
                f"{event.new['attempt']}, but its claim was of attempt {hold.attempt}",
                [event.new],
            )
    for word in facts.words.get(key, ()):
        hold = facts.hold_of.get((word.token, key))
        if word.word == "begin" and hold is not None and word.attempt != hold.attempt:
            yield Finding(
                NAME,
                f"{facts.called(key)}: its handler began at {moment(word.at)} as attempt {word.attempt}, "
                "but the claim "
                f"{word.token} was of attempt {hold.attempt}",
            )


def _too_many(facts: Facts, key: Key, most_of: dict[str, int]) -> Iterator[Finding]:
    job = facts.jobs.get(key[0])
    if job is None or not job.versions:
        return
    most = most_of.get(key[0])
    if most is None:
        retries = (int((version.row.get("policy") or {}).get("max_retries", 3)) for version in job.versions)
        most = most_of[key[0]] = max(retries) + 1
    over = next((hold for hold in facts.holds[key] if hold.attempt > most), None)
    if over is not None:
        yield Finding(
            NAME,
            f"{facts.called(key)}: claimed at {moment(over.begun.at)} as attempt {over.attempt}, but the job allows "
            f"{most}",
        )
