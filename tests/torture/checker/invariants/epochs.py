"""No fire commits under an old epoch once a new term has begun."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from ..facts import Facts, Transaction
from ..finding import Finding, moment
from ..records import micros
from .owed import row_document

NAME = "epochs"


def check(facts: Facts) -> Iterator[Finding]:
    """A leader has a term with an epoch, and a fire is a transaction that checks the epoch: a deposed leader fires
    nothing.

    Everything that a fire writes (runs, skipped and missed records, catch-ups) has the shard's epoch of that moment. A
    shard's epoch never goes down.
    """
    for transaction, row in facts.shard_rows:
        if row.old and row.new and int(row.new["epoch"]) < int(row.old["epoch"]):
            yield Finding(
                NAME,
                f"shard {row.new['shard']}: its epoch went down from {row.old['epoch']} to {row.new['epoch']} at "
                f"{moment(transaction.at)}"
                f"; jobs {_jobs_of(facts, int(row.new['shard']))}, any run from then on",
                [row_document(row)],
            )
    for birth in facts.births:
        if birth.state == "missed" and birth.row.get("fired_at") is None:
            continue  # not written by a fire, but by a change or a pause of the job
        yield from _judge(facts, birth.transaction, birth.row, birth.key, f"it was fired ({birth.state})")
    for transaction, row in facts.catch_ups:
        if row.op == "insert" and row.new:
            key = (str(row.new["job_id"]), micros(row.new["first_at"]))
            yield from _judge(facts, transaction, row.new, key, "its catch-up was stored")


def _judge(
    facts: Facts, transaction: Transaction, row: dict[str, Any], key: tuple[str, int], what: str
) -> Iterator[Finding]:
    epoch = row.get("epoch")
    job = facts.jobs.get(key[0])
    if epoch is None or job is None or not job.versions:
        return
    shard = int(job.row["shard"])
    terms = facts.shards.get(shard, [])
    place = bisect_left([term.index for term, _ in terms], transaction.index)
    if place == 0:
        # The audit began in the middle of this term.
        first = next((one for _, one in facts.shard_rows if int(one.any["shard"]) == shard), None)
        if first is None or first.old is None:
            return
        current, since = int(first.old["epoch"]), None
    else:
        current, since = terms[place - 1][1], terms[place - 1][0].at
    if int(epoch) != current:
        yield Finding(
            NAME,
            f"{facts.called(key)}: {what} at {moment(transaction.at)} under epoch {epoch} of shard {shard}, whose "
            "epoch was "
            f"{current} since {moment(since)}",
            [row],
        )


def _jobs_of(facts: Facts, shard: int) -> str:
    return (
        ", ".join(job.name for job in facts.jobs.values() if job.versions and job.row.get("shard") == shard) or "none"
    )
