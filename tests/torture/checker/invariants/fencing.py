"""No write and no effect with a stale token."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ..facts import Facts
from ..finding import Finding, moment
from ..records import Word, micros
from .owed import row_document, word_document

NAME = "fencing"


def check(facts: Facts) -> Iterator[Finding]:
    """Every write after the claim names the token and does nothing if the token is stale.

    In the store: no row that names a claim is written after the claim released the run or was deleted. Outside: an
    effect of an older token is refused once a newer token has begun. A downstream can only do that if each later claim
    of the run has a greater token.
    """
    for write in facts.token_writes:
        at, table = moment(write.transaction.at), write.row.table
        if write.hold is None:
            yield Finding(
                NAME,
                f"{facts.called(write.key)}: {table} was written at {at} with the token {write.claim_id}, which never "
                "held the run",
                [row_document(write.row)],
            )
        elif write.gone_since is not None:
            yield Finding(
                NAME,
                f"{facts.called(write.key)}: {table} was written at {at} with the token {write.claim_id}, which was "
                "stale since "
                f"{moment(write.gone_since.at)} ({write.gone_how})",
                [row_document(write.row)],
            )
    for transaction, row in facts.ghost_claims:
        claim_id = str(row.any["claim_id"])
        gone = facts.claim_gone.get(claim_id)
        keys = facts.claims.get(claim_id) or []
        runs = "; ".join(facts.called(key) for key in keys[:3]) or f"job unknown, runs {row.any.get('scheduled_ats')}"
        yield Finding(
            NAME,
            f"{runs}: the claim {claim_id} was written to ({row.op}) at {moment(transaction.at)}, but it was gone "
            "since "
            f"{moment(gone.at if gone else None)}",
            [row_document(row)],
        )
    yield from _tokens(facts)
    for key, words in facts.words.items():
        yield from _effects(facts, key, words)
    for effect in facts.records.table("effects"):
        yield from _committed(facts, effect)


def _tokens(facts: Facts) -> Iterator[Finding]:
    for key, holds in facts.holds.items():
        for earlier, later in pairwise(holds):
            if later.claim_id <= earlier.claim_id:
                yield Finding(
                    NAME,
                    f"{facts.called(key)}: the claim at {moment(later.begun.at)} has the token {later.claim_id}, "
                    "which is not greater "
                    f"than {earlier.claim_id} of the claim at {moment(earlier.begun.at)}",
                )


def _effects(facts: Facts, key: tuple[str, int], words: list[Word]) -> Iterator[Finding]:
    newest: Word | None = None
    for word in words:
        if word.word == "begin" and (newest is None or word.token > newest.token):
            newest = word
        elif word.word == "effect" and word.accepted and newest is not None and word.token < newest.token:
            yield Finding(
                NAME,
                f"{facts.called(key)}: the effect of token {word.token} (attempt {word.attempt}) was accepted at "
                f"{moment(word.at)}, "
                f"after the newer token {newest.token} (attempt {newest.attempt}) had begun at {moment(newest.at)}",
                [word_document(newest), word_document(word)],
                at=word.at,
                job_id=key[0],
            )


def _committed(facts: Facts, effect: dict[str, object]) -> Iterator[Finding]:
    """A row that a handler committed together with the end of its run exists only if that end is recorded."""
    key = (str(effect["job_id"]), micros(effect["scheduled_at"]))
    outcomes = facts.outcomes.get(key, ())
    standing = outcomes[-1].new if outcomes else None
    if standing is None or standing.get("claim_id") != effect.get("token"):
        yield Finding(
            NAME,
            f"{facts.called(key)}: ctx.transaction() committed with the token {effect.get('token')}, but the outcome "
            "at "
            f"{(standing or {}).get('finished_at')} is of {(standing or {}).get('claim_id')}",
            [dict(effect), standing or {}],
        )
