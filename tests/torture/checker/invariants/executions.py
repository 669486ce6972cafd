"""Every second execution has a recorded cause."""

from __future__ import annotations

from collections.abc import Iterator

from ..facts import Facts
from ..finding import Finding, moment
from ..records import Word
from .owed import word_document

NAME = "executions"


def check(facts: Facts) -> Iterator[Finding]:
    """A run executes at least once; if it executes again, the store records why.

    A handler begins under a claim of the store, once per claim. It begins under another claim only after the previous
    claim recorded an attempt (a failure, or LeaseLost by a rescue) or released the run (a snooze, a return at
    shutdown). `leases` checks whether a lease was rightly lost.
    """
    for key, words in facts.words.items():
        begun: dict[str, list[Word]] = {}
        for word in words:
            if word.word == "begin":
                begun.setdefault(word.token, []).append(word)
        holds = {hold.claim_id: hold for hold in facts.holds.get(key, ())}
        for token, begins in begun.items():
            first = begins[0]
            if len(begins) > 1:
                yield Finding(
                    NAME,
                    f"{facts.called(key)}: began {len(begins)} times under the one token {token}, at "
                    f"{' and '.join(moment(word.at) for word in begins)}",
                    [word_document(word) for word in begins],
                )
            if token not in holds:
                yield Finding(
                    NAME,
                    f"{facts.called(key)}: began at {moment(first.at)} under the token {token}, which never held "
                    "the run",
                    [word_document(first)],
                    at=first.at,
                    job_id=key[0],
                )
        order = list(holds.values())
        for number, hold in enumerate(order[:-1]):
            later = next((other for other in order[number + 1 :] if other.claim_id in begun), None)
            if hold.claim_id not in begun or later is None:
                continue
            recorded = hold.ended is not None and hold.ended.index < later.begun.index
            if hold.cause not in ("attempts", "released") or not recorded:
                first, second = begun[hold.claim_id][0], begun[later.claim_id][0]
                yield Finding(
                    NAME,
                    f"{facts.called(key)}: began at {moment(first.at)} (attempt {first.attempt}, token "
                    f"{hold.claim_id}) and again at "
                    f"{moment(second.at)} (attempt {second.attempt}, token {later.claim_id}), but no attempt, snooze "
                    "or return is "
                    f"recorded for the first ({hold.how or 'it was still held'})",
                    [word_document(first), word_document(second)],
                    at=first.at,
                    job_id=key[0],
                )
