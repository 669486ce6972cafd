"""Every occurrence that a schedule owes is accounted for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from ..facts import DEDUPLICATED, MISSED, SECOND, TRIGGERED, UNFINISHED, Birth, Facts, Job, Transaction, Version
from ..finding import Finding, moment, seconds
from ..records import Row, micros, micros_or_none
from ..stepping import Grid, grid_of

NAME = "owed"
# The store and the sink read the same clock; this covers its rounding.
_EARLY = 1_000
# A fire may wait this long for a lock between reading and writing.
_WAIT = 5 * SECOND
# A handler with isolation="process" may wait this long for one of the worker's few child processes.
_ISOLATED, _CHILD = "isolated", 5 * SECOND
_POLICY_RULES = {"SKIP": "SKIP", "RUN_ONCE": "RUN_ONCE", "max_missed": "RUN_ALL"}
# Changes of a job's schedule: by a client, and by a deploy whose code declares another one.
_RETIMING = ("changed", "redefined")
_BAD_VERDICTS = ("unrecorded", "overdue")


def check(facts: Facts) -> Iterator[Finding]:
    """Every expected occurrence is accounted for: it begins in its window, or a recorded decision says why not.

    Each step of a job from one `next_run_at` to the next must account, in its own transaction, for every occurrence
    that the scan finds between the two: by runs, by records of skipped or missed occurrences, or by a catch-up that
    fires them later. An edit records the occurrences that it gives up. So, by induction, nothing between a job's
    creation and its end is forgotten. Each run must also begin: not early, and not later than the grace, except while
    faults last.
    """
    for job in facts.jobs.values():
        for version in job.versions:
            yield from _step(facts, job, version)
        yield from _standing(facts, job)
    yield from _catch_ups(facts)
    for birth in facts.births:
        if birth.state == "missed":
            yield from _missed(facts, birth)
        elif birth.state == "skipped":
            yield from _skipped(facts, birth)
    yield from _begins(facts)
    yield from _explained(facts)


def _step(facts: Facts, job: Job, version: Version) -> Iterator[Finding]:
    grid = grid_of(version.row if version.old is None else version.old)
    if grid is None:
        return
    if version.old is None:
        yield from _first(facts, job, version, grid)
        return
    left, reached = version.old_next_run_at, version.next_run_at
    if left is None or left == reached:
        return
    at = version.transaction.at
    if version.retracted and not version.edit:
        return  # retracted, so not fired; the replay has checked that the job went back to the retracted occurrences
    if version.edit:
        if not version.changes:
            yield Finding(
                NAME,
                f"{facts.job_called(job.job_id)} was moved from {moment(left)} to {moment(reached)} at {moment(at)} "
                "by a "
                "change that is not recorded",
                [_both(version)],
            )
        elif any(change["what"] in _RETIMING for change in version.changes) and not grid.once and not _is_once(version):
            # Occurrences overdue beyond the grace are given up and recorded; those within it still fire.
            until = at - facts.grace - _WAIT
            yield from _unaccounted(facts, job, version.transaction, grid, left, until, f"the change at {moment(at)}")
        return
    last = at if reached is None else reached - 1
    yield from _unaccounted(
        facts, job, version.transaction, grid, left, max(left, last), f"the fire at {moment(at)}", left
    )
    if reached is None and not _is_over(version, grid, at):
        yield Finding(
            NAME,
            f"{facts.job_called(job.job_id)} ended at {moment(at)} after {moment(left)}, although "
            f"{moment(grid.first_after(at))} "
            "is still to come",
            [_both(version)],
        )


def _is_once(version: Version) -> bool:
    return (version.old or {}).get("kind") == "once"


def _first(facts: Facts, job: Job, version: Version, grid: Grid) -> Iterator[Finding]:
    planned = version.next_run_at
    if planned is None or grid.once:
        return
    created = micros(version.row["created_at"])
    earlier = grid.between(created + 1, planned - 1)
    if earlier:
        yield Finding(
            NAME,
            f"{facts.job_called(job.job_id)}, created {moment(created)}, begins with {moment(planned)}: "
            f"{moment(earlier[0])} was "
            "never planned",
            [version.row],
        )


def _is_over(version: Version, grid: Grid, at: int) -> bool:
    row, old = version.row, version.old or {}
    max_runs = old.get("max_runs")
    if grid.once or (max_runs is not None and int(row.get("run_count") or 0) >= int(max_runs)):
        return True
    # The last occurrence may have been fired a little ahead of its time.
    return grid.end_at is not None and grid.first_after(max(at, version.old_next_run_at or at)) is None


def _unaccounted(
    facts: Facts,
    job: Job,
    transaction: Transaction,
    grid: Grid,
    first: int,
    last: int,
    by: str,
    also: int | None = None,
) -> Iterator[Finding]:
    expected = grid.between(first, last)
    if also is not None and also not in expected[:1]:
        expected.insert(0, also)
    if not expected:
        return
    born = {birth.key[1] for birth in facts.born_in.get((job.job_id, transaction.index), ())}
    ranges = _ranges(transaction, job.job_id)
    lost = [at for at in expected if at not in born and not any(low <= at <= high for low, high in ranges)]
    if lost:
        others = f" and {len(lost) - 1} more up to {moment(lost[-1])}" if len(lost) > 1 else ""
        yield Finding(
            NAME,
            f"{facts.job_called(job.job_id)} run {moment(lost[0])}{others}: {by} moved on from {moment(first)} "
            "without a run "
            "and without a record",
            [row_document(row) for row in transaction.rows[:20]],
        )


def _ranges(transaction: Transaction, job_id: str) -> list[tuple[int, int]]:
    """The spans of occurrences that this transaction records as missed or stores as a catch-up."""
    found = []
    for row in transaction.rows:
        new = row.new
        if new is None or new.get("job_id") != job_id or row.op != "insert":
            continue
        if row.table == "catch_ups":
            found.append((micros(new["first_at"]), micros(new["last_at"])))
        elif row.table == "history" and new.get("status") == "missed":
            note = new.get("note") or {}
            found.append(
                (micros(note.get("first", new["scheduled_at"])), micros(note.get("last", new["scheduled_at"])))
            )
    return found


def _catch_ups(facts: Facts) -> Iterator[Finding]:
    """The occurrences of a catch-up become runs, in order, or are recorded as missed."""
    for transaction, row in facts.catch_ups:
        if row.op == "insert" or row.old is None:
            continue
        job = facts.jobs.get(str(row.old["job_id"]))
        if job is None or not job.versions:
            continue
        grid = grid_of(_in_force(job, transaction))
        if grid is None:
            continue
        first = micros(row.old["first_at"])
        last = micros(row.old["last_at"]) if row.new is None else micros(row.new["first_at"]) - 1
        # A catch-up whose runs all exist already has nothing left to do.
        known = {birth.key[1] for birth in facts.births_of[job.job_id]}
        by = f"the catch-up at {moment(transaction.at)}"
        for finding in _unaccounted(facts, job, transaction, grid, first, last, by):
            if not all(at in known for at in grid.between(first, last)):
                yield finding


def _in_force(job: Job, transaction: Transaction) -> dict[str, Any]:
    row = job.versions[0].row
    for version in job.versions:
        if version.transaction.index >= transaction.index:
            return version.old or version.row
        row = version.row
    return row


def _standing(facts: Facts, job: Job) -> Iterator[Finding]:
    """At the end, an active job waits for a future occurrence."""
    if job.deleted is not None or not job.versions:
        return
    row = job.row
    due = micros_or_none(row.get("next_run_at"))
    if row.get("status") == "active" and due is None:
        yield Finding(NAME, f"{facts.job_called(job.job_id)} is active at the end and nothing is planned for it", [row])
    elif due is not None and due < facts.settled - facts.grace - facts.recovery:
        yield Finding(
            NAME,
            f"{facts.job_called(job.job_id)} run {moment(due)} was never fired; at {moment(facts.settled)} all was "
            "settled",
            [row],
        )


def _missed(facts: Facts, birth: Birth) -> Iterator[Finding]:
    job = facts.jobs.get(birth.key[0])
    if job is None or not job.versions:
        return
    note = birth.row.get("note") or {}
    reason = str(note.get("reason"))
    first, last = (
        micros(note.get("first", birth.row["scheduled_at"])),
        micros(note.get("last", birth.row["scheduled_at"])),
    )
    row = _in_force(job, birth.transaction)
    grid = grid_of(row)
    called, at = facts.called(birth.key), micros(birth.row["finished_at"])
    if reason in (*_POLICY_RULES, "catch_up_window"):
        if last > at - facts.grace:
            yield Finding(
                NAME,
                f"{called}: recorded as missed ({reason}) up to {moment(last)} at {moment(at)}, only "
                f"{seconds(at - last)} after "
                "it was due: within the grace it is late, not missed",
                [birth.row],
            )
        policies = facts.policies(job.job_id, birth.transaction.at)
        wanted = _POLICY_RULES.get(reason)
        if wanted and (
            row.get("kind") == "once" or all(policy.get("missed_window", "RUN_ONCE") != wanted for policy in policies)
        ):
            yield Finding(
                NAME,
                f"{called}: recorded as missed at {moment(at)} by a rule that the job does not have: {reason}",
                [birth.row, row],
            )
        if reason == "RUN_ONCE" and not _newer_one_runs(facts, birth, last):
            yield Finding(
                NAME,
                f"{called}: RUN_ONCE dropped all up to {moment(last)} at {moment(at)}, including the latest one",
                [birth.row],
            )
    if grid is not None and not grid.once and note.get("count") is not None and reason != "dst_gap":
        expected = len(grid.between(first, last)) + (0 if grid.holds(first) else 1)
        if expected != int(note["count"]):
            yield Finding(
                NAME,
                f"{called}: recorded as missed {note['count']} times from {moment(first)} to {moment(last)} at "
                f"{moment(at)}, but the "
                f"schedule has {expected}",
                [birth.row],
            )


def _newer_one_runs(facts: Facts, birth: Birth, last: int) -> bool:
    born = facts.born_in.get((birth.key[0], birth.transaction.index), ())
    if any(other.key[1] > last and other.state != "missed" for other in born):
        return True
    return any(first > last for first, _ in _ranges(birth.transaction, birth.key[0])) or any(
        row.table == "catch_ups" and row.new and micros(row.new["last_at"]) > last for row in birth.transaction.rows
    )


def _skipped(facts: Facts, birth: Birth) -> Iterator[Finding]:
    """An occurrence is skipped for overlap only if an earlier run was unfinished."""
    job_id, _ = birth.key
    # Newest first: the newest run is the most likely one.
    for other in reversed(facts.births_of[job_id]):
        if other.key == birth.key or other.transaction.index > birth.transaction.index:
            continue
        if facts.state_before(other.key, birth.transaction) in UNFINISHED or other.transaction is birth.transaction:
            return
        # The other run may have ended between the fire's read and its commit.
        ended = [move.transaction.at for move in facts.moves[other.key] if move.before in UNFINISHED]
        if ended and other.state in UNFINISHED and ended[-1] >= birth.transaction.at - _WAIT:
            return
    yield Finding(
        NAME,
        f"{facts.called(birth.key)}: skipped for overlap at {moment(birth.transaction.at)}, but no run of the job was "
        "unfinished then",
        [birth.row],
    )


def _begins(facts: Facts) -> Iterator[Finding]:
    quiet = Deadlines(facts)
    begins = sorted(word.at for words in facts.words.values() for word in words if word.word == "begin")
    busy = Queue(begins, longest=2 * facts.grace)
    for birth in facts.births:
        if birth.state in ("missed", "skipped"):
            continue
        words = [word for word in facts.words.get(birth.key, ()) if word.word == "begin"]
        outcome = facts.outcomes.get(birth.key, ())
        status = outcome[-1].new if outcome else None
        if not words:
            if status and status["status"] == "succeeded" and not int(status.get("flags") or 0) & DEDUPLICATED:
                yield Finding(
                    NAME,
                    f"{facts.called(birth.key)}: recorded as succeeded at {status['finished_at']}, but its handler "
                    "never began",
                    [status],
                )
            continue
        first = words[0]
        due = birth.key[1]
        if first.at < due - _EARLY:
            yield Finding(
                NAME,
                f"{facts.called(birth.key)}: began at {moment(first.at)}, {seconds(due - first.at)} before its time",
                [word_document(first)],
            )
            continue
        base = due
        for move in facts.moves[birth.key]:
            if move.before == "waiting" and move.after == "queued":
                base = max(base, move.transaction.at)  # overlap held it until then
        if birth.flags & (MISSED | TRIGGERED) or birth.row.get("epoch") is None:
            base = max(base, birth.transaction.at)
        hold = facts.hold_of.get((first.token, birth.key))
        if hold is not None and hold is not facts.holds[birth.key][0]:
            # Earlier claims ended before the handler began; each is recorded and put the run back for later.
            back = [
                run_at for transaction, run_at in facts.startable[birth.key] if transaction.index < hold.begun.index
            ]
            base = max(base, back[-1] if back else base)
        if facts.handler(birth.key[0]) == _ISOLATED:
            base += _CHILD
        if first.at > quiet.after(base) and not busy.between(quiet.after(base), first.at):
            yield Finding(
                NAME,
                f"{facts.called(birth.key)}: began at {moment(first.at)}, {seconds(first.at - base)} after it could, "
                "and neither a "
                f"fault nor a recorded decision explains it (its window ended at {moment(quiet.after(base))})",
                [birth.row, word_document(first)],
            )


class Queue:
    """Whether the workers were busy, so that a less urgent run had to wait, as after an outage.

    They were if other runs began without a pause of more than a second, for at most `longest`.
    """

    def __init__(self, begins: Sequence[int], *, longest: int) -> None:
        self._begins = begins
        self._longest = longest

    def between(self, since: int, until: int) -> bool:
        if until - since > self._longest:
            return False
        first, last = bisect_left(self._begins, since - SECOND), bisect_left(self._begins, until)
        stretch = [since - SECOND, *self._begins[first:last], until]
        return max(later - earlier for earlier, later in pairwise(stretch)) <= SECOND


class Deadlines:
    """The time by which a run that could begin must have begun: the grace, extended while faults and their consequences
    last."""

    def __init__(self, facts: Facts) -> None:
        self._grace = facts.grace
        self._troubled: list[tuple[int, int]] = []
        for fault in facts.records.faults:
            until = fault.ended + facts.recovery
            if self._troubled and fault.begun <= self._troubled[-1][1] + self._grace:
                self._troubled[-1] = (self._troubled[-1][0], max(until, self._troubled[-1][1]))
            else:
                self._troubled.append((fault.begun, until))

    def after(self, base: int) -> int:
        deadline = base + self._grace
        for begun, until in self._troubled:
            if begun <= deadline and base <= until:
                deadline = max(deadline, until + self._grace)
        return deadline


def _explained(facts: Facts) -> Iterator[Finding]:
    for one in facts.records.final.get("explained") or []:
        answer = one.get("answer")
        verdict = answer.get("verdict") if isinstance(answer, dict) else None
        if verdict is None or verdict in _BAD_VERDICTS:
            job_id = str(one.get("job_id"))
            yield Finding(
                NAME,
                f"{facts.job_called(job_id)} run {moment(micros_or_none(one.get('at')))}: "
                f"Duly's explanation is {verdict}",
                [one],
            )


def _both(version: Version) -> dict[str, Any]:
    return {"old": version.old, "new": version.row, "changes": version.changes}


def row_document(row: Row) -> dict[str, Any]:
    return {"n": row.n, "at": moment(row.at), "table": row.table, "op": row.op, "old": row.old, "new": row.new}


def word_document(word: Any) -> dict[str, Any]:
    return {
        "n": word.n, "at": moment(word.at), "word": word.word, "attempt": word.attempt, "token": word.token,
        "worker": word.worker, "accepted": word.accepted,
    }  # fmt: skip
