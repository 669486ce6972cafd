"""Runs make legal moves only."""

from __future__ import annotations

from collections.abc import Iterator

from ..facts import ENDED, Facts
from ..finding import Finding, moment

NAME = "moves"

# The moves of section 6 of the specification. None: the run does not exist yet.
LEGAL: dict[str | None, frozenset[str]] = {
    # A fire queues a run or lets it wait for an earlier one; skipped and missed occurrences are recorded as ended.
    None: frozenset({"queued", "waiting", "skipped", "missed"}),
    "queued": frozenset({"running", "cancelled"}),
    "retrying": frozenset({"running", "cancelled"}),
    "waiting": frozenset({"queued", "cancelled"}),
    # Rescue, snooze and shutdown return the run to the queue.
    # A worker that finds it too old to start (start_within_seconds) records it as missed.
    "running": frozenset({"succeeded", "retrying", "queued", "dead", "cancelled", "missed"}),
    # A redrive; the run waits if its job has an unfinished run.
    "dead": frozenset({"queued", "waiting"}),
    "succeeded": frozenset(),
    "cancelled": frozenset(),
    "skipped": frozenset(),
    "missed": frozenset(),
}


def check(facts: Facts) -> Iterator[Finding]:
    """`queued` → `running` → `succeeded` | `retrying` → `running` … | `dead` | `cancelled`; plus `waiting`,
    `skipped`, `missed`.

    Every write is a legal move (a run that was fired ahead may also be retracted before its time), and a run is in one
    place: in the queue, under one claim, or in the history.
    """
    for key, moves in facts.moves.items():
        for move in moves:
            if move.after in LEGAL.get(move.before, frozenset()) or move.retracted:
                continue
            if move.before in ENDED and (move.after in ENDED or move.after is None):
                continue  # one outcome replaced another: `outcomes` checks that
            became = "nowhere: neither queued, nor claimed, nor recorded" if move.after is None else move.after
            yield Finding(
                NAME,
                f"{facts.called(key)}: went from {move.before or 'nothing'} to {became} at "
                f"{moment(move.transaction.at)}",
                [{"before": one.before, "after": one.after, "at": moment(one.transaction.at)} for one in moves],
            )
    for shared in facts.shared:
        yield Finding(NAME, f"{facts.called(shared.key)}: {shared.places} at {moment(shared.transaction.at)}")
