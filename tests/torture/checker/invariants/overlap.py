"""Overlap is respected, by zombies as well."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ..facts import ACTIVE, Facts, Hold, Transaction
from ..finding import Finding, Key, moment
from ..records import INFINITY, Word
from .owed import word_document

NAME = "overlap"


def check(facts: Facts) -> Iterator[Finding]:
    """With overlap `skip` or `queue` no two runs of a job execute at once; a run waiting for its retry is unfinished.

    In the store: when a run is claimed, no other run of the job is claimed, queued or retrying. In the sink's record: a
    run begins while another run of the job still executes only if the other is a zombie, whose claim was already
    deleted or whose end was already recorded. (`fencing` checks that a zombie's effects are refused.)
    """
    yield from _in_store(facts)
    yield from _in_sink(facts)


def _in_store(facts: Facts) -> Iterator[Finding]:
    events = [
        (move.transaction.index, move.after == "running", key, move)
        for key, moves in facts.moves.items()
        for move in moves
    ]
    active: dict[str, set[Key]] = defaultdict(set)
    # Within one transaction, ends are sorted before starts.
    for _, starts, key, move in sorted(events, key=lambda event: event[:3]):
        if starts:
            others = [
                other for other in active[key[0]] if other != key and not _is_ahead(facts, other, move.transaction)
            ]
            for other in others:
                born = min(_born(facts, key), _born(facts, other))
                if facts.never_overlaps(key[0], born, move.transaction.at):
                    yield Finding(
                        NAME,
                        f"{facts.called(key)}: claimed at {moment(move.transaction.at)}, although the run "
                        f"{moment(other[1])} of the "
                        f"job was {facts.state_before(other, move.transaction)}",
                    )
        if move.after in ACTIVE:
            active[key[0]].add(key)
        else:
            active[key[0]].discard(key)


def _is_ahead(facts: Facts, key: Key, transaction: Transaction) -> bool:
    """Whether the run was fired ahead and is not due yet: it may still be retracted or made to wait."""
    rows = [run_at for one, run_at in facts.startable[key] if one.index < transaction.index]
    return facts.state_before(key, transaction) == "queued" and bool(rows) and rows[-1] > transaction.at


def _born(facts: Facts, key: Key) -> int:
    birth = facts.birth_of.get(key)
    return birth.transaction.at if birth else 0


def _in_sink(facts: Facts) -> Iterator[Finding]:
    executions: dict[str, list[tuple[int, int, Word, Key]]] = defaultdict(list)
    for key, words in facts.words.items():
        ends = {(word.token, word.execution): word.at for word in words if word.word == "end"}
        for word in words:
            if word.word == "begin":
                executions[key[0]].append((word.at, ends.get((word.token, word.execution), INFINITY), word, key))
    for job_id, ones in executions.items():
        ones.sort(key=lambda one: (one[0], one[2].n))
        under_way: list[tuple[int, int, Word, Key]] = []
        for at, ended, word, key in ones:
            under_way = [one for one in under_way if one[1] > at]
            mine = facts.hold_of.get((word.token, key))
            if not _is_gone(mine, at):  # a zombie's late begin breaks no promise
                for since, _, other, other_key in under_way:
                    hold = facts.hold_of.get((other.token, other_key))
                    if other_key == key or hold is None or _is_gone(hold, at):
                        continue
                    born = min(_born(facts, key), _born(facts, other_key))
                    if facts.never_overlaps(job_id, born, at):
                        yield Finding(
                            NAME,
                            f"{facts.called(key)}: began at {moment(at)} (token {word.token}) while the run "
                            f"{moment(other_key[1])} of the "
                            f"job, begun at {moment(since)} (token {other.token}), still executed and held its lease",
                            [word_document(other), word_document(word)],
                            at=at,
                            job_id=job_id,
                        )
            under_way.append((at, ended, word, key))


def _is_gone(hold: Hold | None, at: int) -> bool:
    return hold is not None and hold.ended is not None and hold.ended.at <= at
