"""Replays the audit transaction by transaction: the state of every run at every moment, and the claim that held it.

Rows of one transaction become visible together, and the order in which triggers of one statement write them means
nothing. So a run's state is compared before and after a transaction, never within it. Transactions are ordered by
their last write. Two transactions that write or lock the same row are then in the order of their commits, because the
later one cannot write the row before the earlier one is over.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .finding import Finding, Key, moment
from .records import Records, Row, Word, micros, micros_or_none

MISSED, DEDUPLICATED, TRIGGERED = 2, 4, 16
ENDED = frozenset({"succeeded", "dead", "cancelled", "skipped", "missed"})
ACTIVE = frozenset({"queued", "retrying", "running"})
UNFINISHED = ACTIVE | {"waiting"}
SECOND = 1_000_000
# A retraction may appear this late: the product reads the clock before its statement, the audit after it.
_RETRACTED_LATE = SECOND // 2
# A finding may follow from a change that the promoted standby never received if it lies this long before or after the
# change. Before: the change is noted before its answer. After: a handler goes on under a claim that was forgotten.
_BEFORE_FORGOTTEN, _AFTER_FORGOTTEN = SECOND, 30 * SECOND
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(slots=True, eq=False)
class Transaction:
    index: int
    at: int
    rows: list[Row]


@dataclass(slots=True)
class Version:
    """A job's row as one transaction left it. `edit`: the transaction raised the job's version, which a fire does not.

    `retracted`: occurrences that were fired ahead of their time and taken back by this transaction before that time.
    """

    transaction: Transaction
    op: str
    old: dict[str, Any] | None
    row: dict[str, Any]
    changes: list[dict[str, Any]]
    retracted: list[int] = field(default_factory=list)

    @property
    def edit(self) -> bool:
        if self.old is None:
            return False
        return bool(self.old.get("version") != self.row.get("version"))

    @property
    def next_run_at(self) -> int | None:
        return micros_or_none(self.row.get("next_run_at"))

    @property
    def old_next_run_at(self) -> int | None:
        return None if self.old is None else micros_or_none(self.old.get("next_run_at"))


@dataclass(slots=True)
class Job:
    job_id: str
    versions: list[Version] = field(default_factory=list)
    deleted: Transaction | None = None
    _begun: list[int] = field(default_factory=list)

    @property
    def row(self) -> dict[str, Any]:
        return self.versions[-1].row

    @property
    def name(self) -> str:
        row = self.row
        return str(row.get("dedupe_key") or row.get("name"))

    def during(self, first: int, last: int) -> list[dict[str, Any]]:
        """The job's rows that were in force at some moment from first to last."""
        if len(self._begun) != len(self.versions):
            self._begun = [version.transaction.at for version in self.versions]
        begin = max(0, bisect_left(self._begun, first) - 1)
        return [version.row for version in self.versions[begin : bisect_right(self._begun, last)]]


@dataclass(slots=True, eq=False)
class Hold:
    """A claim's hold on one run: until the claim releases the run, records an end for it, or is deleted."""

    claim_id: str
    key: Key
    ordinal: int
    attempt: int
    worker_id: str
    begun: Transaction
    ended: Transaction | None = None
    how: str = ""
    cause: str | None = None

    def end(self, transaction: Transaction, how: str) -> None:
        if self.ended is None:
            self.ended, self.how = transaction, how


@dataclass(slots=True)
class Move:
    transaction: Transaction
    before: str | None
    after: str | None
    retracted: bool = False


@dataclass(slots=True)
class Birth:
    """A run, or the record of a skipped or missed occurrence, as it was first stored."""

    key: Key
    transaction: Transaction
    table: str
    row: dict[str, Any]
    state: str
    retracted: bool = False

    @property
    def flags(self) -> int:
        return int(self.row.get("flags") or 0)


@dataclass(slots=True)
class TokenWrite:
    """A row that names a claim, and whether that claim still held the run."""

    transaction: Transaction
    row: Row
    key: Key
    claim_id: str
    hold: Hold | None
    gone_since: Transaction | None
    gone_how: str


@dataclass(slots=True)
class Outcome:
    transaction: Transaction
    op: str
    old: dict[str, Any] | None
    new: dict[str, Any] | None


@dataclass(slots=True)
class Shared:
    """A run that was in two places at once."""

    key: Key
    transaction: Transaction
    places: str


class Facts:
    def __init__(self, records: Records) -> None:
        self.records = records
        self.transactions: list[Transaction] = []
        self.jobs: dict[str, Job] = {}
        self.holds: dict[Key, list[Hold]] = defaultdict(list)
        self.hold_of: dict[tuple[str, Key], Hold] = {}
        self.claims: dict[str, list[Key]] = {}
        self.claim_gone: dict[str, Transaction] = {}
        self.ghost_claims: list[tuple[Transaction, Row]] = []
        self.token_writes: list[TokenWrite] = []
        self.outcomes: dict[Key, list[Outcome]] = defaultdict(list)
        self.attempts: dict[Key, list[tuple[Transaction, dict[str, Any]]]] = defaultdict(list)
        self.moves: dict[Key, list[Move]] = defaultdict(list)
        self.births: list[Birth] = []
        self.birth_by_key: dict[Key, Birth] = {}
        self.births_of: dict[str, list[Birth]] = defaultdict(list)
        self.born_in: dict[tuple[str, int], list[Birth]] = defaultdict(list)
        self.shared: list[Shared] = []
        self.startable: dict[Key, list[tuple[Transaction, int]]] = defaultdict(list)
        self.shards: dict[int, list[tuple[Transaction, int]]] = defaultdict(list)
        self.shard_rows: list[tuple[Transaction, Row]] = []
        self.catch_ups: list[tuple[Transaction, Row]] = []
        self.letters: dict[Key, list[tuple[Transaction, str]]] = defaultdict(list)
        self.words: dict[Key, list[Word]] = defaultdict(list)
        self._runs: dict[Key, dict[str, Any]] = {}
        self._ended: dict[Key, str] = {}
        self._held: dict[Key, set[str]] = defaultdict(set)
        for word in records.sink:
            self.words[word.key].append(word)
        self._order()
        for transaction in self.transactions:
            self._replay(transaction)
        # A run that was retracted before its time does not count. If it is fired again, that is another birth.
        self.births = [birth for birth in self.births if not birth.retracted]
        for birth in self.births:
            self.births_of[birth.key[0]].append(birth)
        self.by_key = {job.row.get("dedupe_key"): job for job in self.jobs.values() if job.row.get("dedupe_key")}
        self.birth_of = {birth.key: birth for birth in reversed(self.births)}

    # Times from the settings and from the run

    @property
    def grace(self) -> int:
        return self.records.setting("misfire_grace", 10)

    @property
    def recovery(self) -> int:
        """How long a fault's consequences may last: both leases, plus what periodic checks every few seconds add."""
        return self.records.setting("leader_lease", 5) + self.records.setting("worker_lease", 15) + 10 * SECOND

    @property
    def settled(self) -> int:
        run = self.records.run
        return micros(run.get("settled") or run.get("ended") or 0)

    @property
    def healed(self) -> int:
        run = self.records.run
        return micros(run.get("healed") or run.get("started") or 0)

    def not_replicated(self, finding: Finding) -> bool:
        """Whether the finding follows from a change of its job that PostgreSQL had committed and not replicated."""
        at, job_id = finding.at, finding.job_id
        if at is None or job_id is None or self.records.run.get("standby") != "asynchronous":
            return False
        return any(
            changed - _BEFORE_FORGOTTEN <= at <= changed + _AFTER_FORGOTTEN
            for changed in self._forgotten.get(job_id, ())
        )

    @cached_property
    def _forgotten(self) -> dict[str, list[int]]:
        """For each job, the times of its changes that the promoted standby never received."""
        found: dict[str, list[int]] = defaultdict(list)
        for row in self.records.forgotten:
            for job_id in set(_UUID.findall(json.dumps([row.old, row.new]))):
                found[job_id].append(row.at)
        return found

    # Names for messages, and states

    def called(self, key: Key) -> str:
        return f"{self.job_called(key[0])} run {moment(key[1])}"

    def job_called(self, job_id: str) -> str:
        job = self.jobs.get(job_id)
        return f"job {job.name} ({job_id})" if job else f"job {job_id}"

    def handler(self, job_id: str) -> str | None:
        job = self.jobs.get(job_id)
        return job.versions[-1].row.get("handler") if job and job.versions else None

    def state_before(self, key: Key, transaction: Transaction) -> str | None:
        """The run's state just before the transaction."""
        state = None
        for move in self.moves.get(key, ()):
            if move.transaction.index >= transaction.index:
                return move.before
            state = move.after
        return state

    def state_at_end(self, key: Key) -> str | None:
        moves = self.moves.get(key)
        return moves[-1].after if moves else None

    def policies(self, job_id: str, at: int, before: int = 10 * SECOND) -> list[dict[str, Any]]:
        """The job's policies at that time or up to `before` earlier: a fire plans by what it has read."""
        job = self.jobs.get(job_id)
        return [row.get("policy") or {} for row in job.during(at - before, at)] if job else []

    def never_overlaps(self, job_id: str, first: int, last: int) -> bool:
        """Whether the job's overlap was never `parallel` in this time."""
        # A fire may have read the policy up to ten seconds before.
        span = last - first + 10 * SECOND
        return all(policy.get("overlap", "skip") != "parallel" for policy in self.policies(job_id, last, span))

    # Replay

    def _order(self) -> None:
        rows: dict[int, list[Row]] = defaultdict(list)
        for row in self.records.audit:
            rows[row.txid].append(row)
        ordered = sorted(rows.values(), key=lambda some: some[-1].n)
        self.transactions = [
            Transaction(index, max(row.at for row in some), some) for index, some in enumerate(ordered)
        ]

    def _state(self, key: Key) -> str | None:
        if key in self._ended:
            return self._ended[key]
        if key in self._runs:
            return str(self._runs[key]["state"])
        return "running" if self._held.get(key) else None

    def _replay(self, transaction: Transaction) -> None:
        before: dict[Key, str | None] = {}
        born: dict[Key, tuple[str, dict[str, Any]]] = {}
        changes = [row.new for row in transaction.rows if row.table == "changes" and row.new]
        # The deletion of a claim comes last: a claim that is closed together with its last outcome held the run until
        # then.
        for row in sorted(transaction.rows, key=lambda row: (row.table == "claims" and row.op == "delete", row.n)):
            match row.table:
                case "jobs":
                    self._job(transaction, row, changes)
                case "runs":
                    self._run(transaction, row, before, born)
                case "claims":
                    self._claim(transaction, row, before)
                case "history":
                    self._outcome(transaction, row, before, born)
                case "attempts" if row.op == "insert" and row.new:
                    key = _key(row.new)
                    self.attempts[key].append((transaction, row.new))
                    self._names(transaction, row, key, row.new.get("claim_id"))
                case "dead_letters":
                    self.letters[_key(row.any)].append((transaction, row.op))
                case "shards":
                    self.shard_rows.append((transaction, row))
                    if row.new:
                        self.shards[int(row.new["shard"])].append((transaction, int(row.new["epoch"])))
                case "catch_ups":
                    self.catch_ups.append((transaction, row))
                case _:
                    pass
        for key, was in before.items():
            state = self._state(key)
            if state != was:
                self.moves[key].append(Move(transaction, was, state))
                # A change that retracts a run before its time but takes effect after that time records it as missed,
                # with the reason `changed`.
                given_up = state == "missed" and (born[key][1].get("note") or {}).get("reason") == "changed"
                back = was == "queued" and (state is None or given_up) and self._is_retraction(transaction, key)
                if back:
                    self.moves[key][-1].retracted = True
                    self.birth_by_key[key].retracted = True
                    self.jobs[key[0]].versions[-1].retracted.append(key[1])
                if (was is None or back) and state is not None:
                    table, document = born.get(key, ("claims", {}))
                    birth = Birth(key, transaction, table, document, state)
                    self.births.append(birth)
                    self.birth_by_key[key] = birth
                    self.born_in[(key[0], transaction.index)].append(birth)
            self._look_for_two_places(key, transaction)

    def _is_retraction(self, transaction: Transaction, key: Key) -> bool:
        """Whether the transaction retracted the run: it was fired ahead of its time and deleted before that time,
        unclaimed, by a transaction that moves the job back or changes it."""
        job = self.jobs.get(key[0])
        if job is None or not job.versions or job.versions[-1].transaction is not transaction:
            return False
        version = job.versions[-1]
        gone = next(
            row.at for row in transaction.rows if row.table == "runs" and row.op == "delete" and _key(row.any) == key
        )
        if key not in self.birth_by_key or self.holds.get(key) or gone > key[1] + _RETRACTED_LATE:
            return False
        return version.edit or (version.next_run_at is not None and version.next_run_at <= key[1])

    def _look_for_two_places(self, key: Key, transaction: Transaction) -> None:
        if key in self._runs and key in self._ended:
            self.shared.append(Shared(key, transaction, f"in the queue and recorded as {self._ended[key]}"))
        elif key in self._runs and self._held.get(key):
            self.shared.append(Shared(key, transaction, f"in the queue and held by {', '.join(self._held[key])}"))
        elif len(self._held.get(key, ())) > 1 and key not in self._ended:
            self.shared.append(Shared(key, transaction, f"held by {' and '.join(sorted(self._held[key]))}"))

    def _job(self, transaction: Transaction, row: Row, changes: list[dict[str, Any]]) -> None:
        job_id = str(row.any["job_id"])
        job = self.jobs.setdefault(job_id, Job(job_id))
        if row.new is None:
            job.deleted = transaction
            return
        own = [change for change in changes if change.get("job_id") == job_id]
        if job.versions and job.versions[-1].transaction is transaction:
            # Others see only the last of several writes in one transaction.
            job.versions[-1].row = row.new
            return
        job.versions.append(Version(transaction, row.op, row.old, row.new, own))

    def _run(
        self,
        transaction: Transaction,
        row: Row,
        before: dict[Key, str | None],
        born: dict[Key, tuple[str, dict[str, Any]]],
    ) -> None:
        key = _key(row.any)
        if row.old and key not in self._runs and key not in before:
            self._runs[key] = row.old  # the run is older than the audit
        before.setdefault(key, self._state(key))
        if row.new is None:
            self._runs.pop(key, None)
        else:
            self._runs[key] = row.new
            self.startable[key].append((transaction, micros(row.new["run_at"])))
            if row.op == "insert":
                born.setdefault(key, ("runs", row.new))

    def _claim(self, transaction: Transaction, row: Row, before: dict[Key, str | None]) -> None:
        document = row.any
        claim_id = str(document["claim_id"])
        if row.op == "insert":
            keys = [
                (str(job), micros(at)) for job, at in zip(document["job_ids"], document["scheduled_ats"], strict=True)
            ]
            self.claims[claim_id] = keys
            for ordinal, (key, attempt) in enumerate(zip(keys, document["attempts"], strict=True), start=1):
                before.setdefault(key, self._state(key))
                hold = Hold(claim_id, key, ordinal, int(attempt), str(document.get("worker_id")), transaction)
                self.holds[key].append(hold)
                self.hold_of[claim_id, key] = hold
                self._held[key].add(claim_id)
            return
        known = self.claims.get(claim_id)
        if known is None or claim_id in self.claim_gone:
            self.ghost_claims.append((transaction, row))
            return
        if row.op == "delete":
            self.claim_gone[claim_id] = transaction
            for key in known:
                if claim_id in self._held[key]:
                    before.setdefault(key, self._state(key))
                    self._held[key].discard(claim_id)
                    self.hold_of[claim_id, key].end(transaction, "the claim was taken away")
            return
        was = (row.old or {}).get("released") or []
        now = document.get("released") or []
        if len(now) == len(was):
            return
        for ordinal in set(now) - set(was):
            key = known[int(ordinal) - 1]
            before.setdefault(key, self._state(key))
            self._held[key].discard(claim_id)
            hold = self.hold_of[claim_id, key]
            if hold.ended is None:
                hold.cause = hold.cause or "released"
            hold.end(transaction, "the claim let it go")

    def _outcome(
        self,
        transaction: Transaction,
        row: Row,
        before: dict[Key, str | None],
        born: dict[Key, tuple[str, dict[str, Any]]],
    ) -> None:
        key = _key(row.any)
        if row.old and key not in self._ended and key not in before:
            self._ended[key] = str(row.old["status"])
        before.setdefault(key, self._state(key))
        self.outcomes[key].append(Outcome(transaction, row.op, row.old, row.new))
        if row.new is None:
            self._ended.pop(key, None)
            return
        self._ended[key] = str(row.new["status"])
        if row.op == "insert":
            born.setdefault(key, ("history", row.new))
            self._names(transaction, row, key, row.new.get("claim_id"))

    def _names(self, transaction: Transaction, row: Row, key: Key, claim_id: Any) -> None:
        if claim_id is None:
            return
        hold = self.hold_of.get((str(claim_id), key))
        gone = None if hold is None or hold.ended is None or hold.ended is transaction else hold.ended
        self.token_writes.append(
            TokenWrite(transaction, row, key, str(claim_id), hold, gone, "" if hold is None else hold.how)
        )
        if hold is not None and gone is None:
            # A failed attempt is a better cause than the outcome that is recorded with it.
            hold.cause = row.table if row.table == "attempts" else hold.cause or row.table
            hold.end(transaction, f"recorded in {row.table}")


def _key(document: dict[str, Any]) -> Key:
    return (str(document["job_id"]), micros(document["scheduled_at"]))
