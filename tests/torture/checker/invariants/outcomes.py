"""At most one recorded outcome per occurrence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..facts import Facts
from ..finding import Finding, Key, moment
from ..records import micros

NAME = "outcomes"


def check(facts: Facts) -> Iterator[Finding]:
    """At most one *recorded* outcome per occurrence, in the history and over all time.

    An outcome is withdrawn only by a redrive and never overwritten. The rows that handlers wrote with
    `ctx.transaction()` count as part of the outcome: at most one per run.
    """
    for key, events in facts.outcomes.items():
        standing = None
        for event in events:
            at = moment(event.transaction.at)
            if event.op == "insert":
                if standing is not None and event.new is not None:
                    yield Finding(
                        NAME,
                        f"{facts.called(key)}: recorded as {event.new['status']} at {at}, although it was recorded as "
                        f"{standing['status']} already (finished {standing['finished_at']})",
                        [standing, event.new],
                    )
                standing = event.new
            elif event.op == "update":
                old, new = event.old or {}, event.new or {}
                if (old.get("status"), old.get("claim_id")) != (new.get("status"), new.get("claim_id")):
                    yield Finding(
                        NAME,
                        f"{facts.called(key)}: its outcome {old.get('status')} was overwritten with "
                        f"{new.get('status')} at {at}",
                        [old, new],
                    )
                standing = event.new
            else:
                redriven = any(one is event.transaction and op == "delete" for one, op in facts.letters.get(key, ()))
                if not redriven:
                    yield Finding(
                        NAME,
                        f"{facts.called(key)}: its outcome {(event.old or {}).get('status')} was withdrawn at {at}, "
                        "and no dead "
                        "letter was redriven then",
                        [event.old or {}],
                    )
                standing = None
    yield from _final(facts)


def _final(facts: Facts) -> Iterator[Finding]:
    recorded: Counter[Key] = Counter(
        (str(row["job_id"]), micros(row["scheduled_at"])) for row in facts.records.table("history")
    )
    for key, count in recorded.items():
        if count > 1:
            yield Finding(NAME, f"{facts.called(key)}: has {count} outcomes in the history at {moment(facts.settled)}")
    written: Counter[Key] = Counter(
        (str(row["job_id"]), micros(row["scheduled_at"])) for row in facts.records.table("effects")
    )
    for key, count in written.items():
        if count > 1:
            rows = [
                row
                for row in facts.records.table("effects")
                if (str(row["job_id"]), micros(row["scheduled_at"])) == key
            ]
            yield Finding(
                NAME,
                f"{facts.called(key)}: ctx.transaction() committed {count} times by {moment(facts.settled)}",
                rows[:10],
            )
