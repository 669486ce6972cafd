"""A lease has its full length, is extended while its worker lives, and its runs are rescued only when it is over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..facts import SECOND, Facts
from ..finding import Finding, Key, moment, seconds
from ..records import INFINITY, Row, micros
from .owed import row_document

NAME = "leases"
# A lease may be this much shorter when it is written: the clock is read before the statement, which takes 0.04 s on a
# busy machine.
_WRITING = 3 * SECOND // 10
# A rescue reads the clock before it deletes the claim's row.
_ROUNDING = SECOND // 100
# A worker that lived for this many leases has had time for a heartbeat. A machine that is too busy may lose one lease.
_LIVED = 3


@dataclass(slots=True)
class _Worker:
    first: int
    last: int
    extended: int = 0
    lost: Row | None = None


def check(facts: Facts) -> Iterator[Finding]:
    """A claim sets a lease, heartbeats extend it, and rescue goes by the lease's end, not by the claim's age.

    A lease counts from the moment it is written: counted from the start of the transaction it would be too short.
    """
    promised = facts.records.setting("worker_lease", 15)
    rescues = _rescues(facts)
    workers: dict[str, _Worker] = {}
    for row in facts.records.audit:
        if row.table != "claims":
            continue
        worker = workers.setdefault(str(row.any["worker_id"]), _Worker(row.at, row.at))
        if row.op != "delete" or (row.txid, _claim(row)) not in rescues:
            # A rescue is no sign of the worker's life: it may come late if another session has locked its rows.
            worker.last = row.at
        until = micros(row.any["lease_until"])
        if row.op == "delete":
            if (lost := rescues.get((row.txid, _claim(row)))) is not None:
                worker.lost = row
                if until > row.at + _ROUNDING:
                    yield Finding(
                        NAME,
                        f"{facts.called(lost)}: the claim {_claim(row)} was taken back at {moment(row.at)}, but its "
                        f"lease ran until {moment(until)}",
                        [row_document(row)],
                    )
            continue
        if row.old is not None and micros(row.old["lease_until"]) == until:
            continue
        # A lease in the past was ended on purpose, because its worker is gone; a mutant sets infinite leases.
        if not row.at < until < INFINITY:
            continue
        worker.extended += row.op == "update"
        if promised - (until - row.at) > _WRITING and not _frozen(facts, row.at):
            yield Finding(
                NAME,
                f"{_runs(facts, row)}: the claim {_claim(row)} was given a lease of {seconds(until - row.at)} at "
                f"{moment(row.at)}, not of "
                f"{seconds(promised)}: it was counted from an earlier time",
                [row_document(row)],
            )
    for worker_id, worker in workers.items():
        if worker.lost is not None and not worker.extended and worker.last - worker.first > _LIVED * promised:
            yield Finding(
                NAME,
                f"{_runs(facts, worker.lost)}: the worker {worker_id} had claims from {moment(worker.first)} to "
                f"{moment(worker.last)}, lost some, "
                "and never extended one",
                [row_document(worker.lost)],
            )


def _rescues(facts: Facts) -> dict[tuple[int, str], Key]:
    """The transaction and claim of every rescue, with one of the rescued runs."""
    return {
        (row.txid, str(new["claim_id"])): (str(new["job_id"]), micros(new["scheduled_at"]))
        for row in facts.records.audit
        if row.table == "attempts" and (new := row.new) is not None and _error(new) == "LeaseLost"
    }


def _frozen(facts: Facts, at: int) -> bool:
    """Whether the server itself may have been frozen between reading the clock and writing."""
    return any(one.begun <= at <= one.ended + 2 * SECOND for one in facts.records.faults if "freeze" in one.kind)


def _runs(facts: Facts, row: Row) -> str:
    return "; ".join(facts.called(key) for key in facts.claims.get(_claim(row), [])[:3])


def _claim(row: Row) -> str:
    return str(row.any["claim_id"])


def _error(row: dict[str, Any]) -> str | None:
    error = row.get("error")
    return error.get("type") if isinstance(error, dict) else None
