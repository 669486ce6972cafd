"""Hand-written histories for the tests of the checker and the report: rows as the store would write them and words as
the sink would, without either. A test makes a good history, spoils one thing, and checks which invariant notices.
"""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

# A whole minute, so that seconds counted from here are also the seconds of cron schedules.
START = 1_800_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INFINITY = "infinity"

Document = dict[str, Any]


def iso(seconds: float) -> str:
    """A moment of the history, counted in seconds from its start, as PostgreSQL's JSON spells it."""
    return (_EPOCH + timedelta(seconds=START) + timedelta(microseconds=round(seconds * 1e6))).isoformat()


@dataclass(frozen=True)
class Run:
    job_id: str
    due: float

    @property
    def run_id(self) -> str:
        return f"{self.job_id}-{round((START + self.due) * 1e6) + (1 << 62):016x}"


@dataclass
class Claim:
    claim_id: str
    worker: str
    runs: list[Run]
    attempts: list[int]


@dataclass
class History:
    """The records of a run. Each public method adds one transaction of the product, or one word of a handler."""

    audit: list[Document] = field(default_factory=list)
    sink: list[Document] = field(default_factory=list)
    operations: list[Document] = field(default_factory=list)
    faults: list[Document] = field(default_factory=list)
    forgotten: list[Document] = field(default_factory=list)
    run: Document = field(default_factory=dict)
    final: Document = field(default_factory=dict)
    _tables: dict[str, dict[Any, Document]] = field(default_factory=dict)
    _numbers: int = 0
    _transaction: int = 0
    _ids: int = 0

    def __post_init__(self) -> None:
        self.run = {
            "seed": 7, "started": START, "ended": START + 130, "healed": START, "settled": START + 125,
            "versions": {"python": "3.11", "postgresql": "18"}, "standby": "synchronous", "coordinator": "postgres",
            "settings": {"leader_lease": 2, "worker_lease": 5, "misfire_grace": 5, "shards": 1}, "mutant": None,
        }  # fmt: skip
        self.final = {
            "activity": [{"pid": 1, "state": "idle", "application_name": "duly", "query": "select 1"}],
            "processes": [
                {"name": "worker-1", "pid": 2, "alive": True, "rss_kb": [[START, 90_000], [START + 120, 99_000]]}
            ],
            "explained": [],
            "logs": {},
        }

    # Rows

    def new_id(self, at: float = 0) -> str:
        """An id like the product's: it begins with the time, so that later ids are greater."""
        self._ids += 1
        return str(UUID(int=(round((START + at) * 1000) << 80) | (7 << 76) | (1 << 63) | self._ids))

    def begin_transaction(self) -> None:
        self._transaction += 1

    def write(self, at: float, table: str, op: str, old: Document | None, new: Document | None) -> None:
        self._numbers += 1
        self.audit.append(
            {
                "n": self._numbers, "txid": self._transaction, "at": START + at, "table": table, "op": op,
                "old": copy.deepcopy(old), "new": copy.deepcopy(new),
            }
        )  # fmt: skip
        rows = self._tables.setdefault(table, {})
        if new is None:
            rows.pop(_identity(table, old or {}), None)
        else:
            rows[_identity(table, new)] = copy.deepcopy(new)

    def rows(self, table: str) -> dict[Any, Document]:
        return self._tables.setdefault(table, {})

    def job(self, job_id: str) -> Document:
        return self.rows("jobs")[job_id]

    def set_job(self, at: float, job_id: str, **values: Any) -> None:
        old = self.job(job_id)
        self.write(at, "jobs", "update", old, {**old, **values})

    def note(self, at: float, job_id: str, what: str, **detail: Any) -> None:
        self._ids += 1
        row = {"change_id": self._ids, "job_id": job_id, "at": iso(at), "what": what, "detail": detail}
        self.write(at, "changes", "insert", None, row)

    def asked(
        self,
        op: str,
        job_id: str,
        at: float,
        *,
        outcome: str = "ok",
        took: float = 0.2,
        answer: Any = None,
        **request: Any,
    ) -> None:
        row = self.rows("jobs").get(job_id)
        self.operations.append(
            {
                "id": len(self.operations) + 1, "client": "c0", "op": op, "job": row["dedupe_key"] if row else None,
                "job_id": job_id, "request": request, "invoked": START + at - took / 2,
                "returned": START + at + took / 2,
                "outcome": outcome, "status": 200 if outcome == "ok" else None,
                "answer": ({"job_id": job_id} if answer is None else answer) if outcome == "ok" else None,
            }
        )  # fmt: skip

    # Jobs

    def submit(self, name: str, schedule: str, at: float, *, first: float | None, **policy: Any) -> str:
        self.begin_transaction()
        job_id = self.new_id(at)
        now = schedule == "now"
        kind = "interval" if schedule.startswith("every") else "once" if now or "T" in schedule else "cron"
        row = {
            "job_id": job_id, "next_run_at": None if first is None else iso(first), "last_run_at": None,
            "created_at": iso(at), "updated_at": iso(at), "start_at": None, "end_at": None, "max_runs": None,
            "run_count": 0, "version": 1, "shard": 0, "priority": 5, "status": "ended" if now else "active",
            "kind": kind,
            "name": name, "queue": "default", "schedule": schedule, "timezone": "UTC", "policy": policy or None,
            "dedupe_key": name, "status_reason": None,
        }  # fmt: skip
        self.write(at, "jobs", "insert", None, row)
        if now:
            self._insert_run(at, Run(job_id, at), "queued", at, epoch=None)
        self.asked("submit", job_id, at, schedule=schedule, dedupe_key=name)
        return job_id

    def pause(self, job_id: str, at: float) -> None:
        self.begin_transaction()
        row = self.job(job_id)
        self.set_job(at, job_id, status="paused", next_run_at=None, version=row["version"] + 1)
        self.note(at, job_id, "paused", next_run_at=row["next_run_at"])
        self.asked("pause", job_id, at)

    def resume(self, job_id: str, at: float, following: float) -> None:
        self.begin_transaction()
        self.set_job(at, job_id, status="active", next_run_at=iso(following), version=self.job(job_id)["version"] + 1)
        self.note(at, job_id, "resumed", next_run_at=iso(following))
        self.asked("resume", job_id, at)

    def change(self, job_id: str, at: float, schedule: str, following: float, taken_back: Run | None = None) -> None:
        self.begin_transaction()
        row = self.job(job_id)
        if taken_back is not None:
            self._delete_run(at, taken_back)
            self.set_job(at, job_id, next_run_at=iso(taken_back.due))
        self.set_job(at, job_id, schedule=schedule, next_run_at=iso(following), version=row["version"] + 1)
        self.note(at, job_id, "changed", old={"schedule": row["schedule"]})
        self.asked("change", job_id, at, schedule=schedule)

    def redeclare(self, job_id: str, at: float, schedule: str, following: float, by: str) -> None:
        """A deploy's code declares another schedule."""
        self.begin_transaction()
        row = self.job(job_id)
        self.set_job(at, job_id, schedule=schedule, next_run_at=iso(following), version=row["version"] + 1)
        self.note(at, job_id, "redefined", schedule=row["schedule"], reason=by)

    def cancel(self, job_id: str, at: float) -> None:
        self.begin_transaction()
        self.set_job(at, job_id, status="cancelled", next_run_at=None, version=self.job(job_id)["version"] + 1)
        self.note(at, job_id, "cancelled")
        for run in [_run(row) for row in self.rows("runs").values() if row["job_id"] == job_id]:
            self._delete_run(at, run)
            self._record(at, run, "cancelled", note={"reason": "the job was cancelled"})
        self.asked("cancel", job_id, at)

    def trigger(self, job_id: str, at: float) -> Run:
        self.begin_transaction()
        run = Run(job_id, at)
        self._insert_run(at, run, "queued", at, epoch=None, flags=16)
        self.asked("trigger", job_id, at, answer={"run_id": run.run_id, "job_id": job_id})
        return run

    # Fires

    def lead(self, at: float, epoch: int) -> None:
        self.begin_transaction()
        old = self.rows("shards").get(0)
        new = {"shard": 0, "epoch": epoch, "node_id": self.new_id(at), "since": iso(at)}
        self.write(at, "shards", "update" if old else "insert", old, new)

    def fire(
        self,
        job_id: str,
        at: float,
        following: float | None,
        *,
        state: str = "queued",
        flags: int = 0,
        due: float | None = None,
    ) -> Run:
        """Fires the job. `due`: the occurrence, if it is not next_run_at."""
        self.begin_transaction()
        return self._fire(job_id, at, following, state, flags, due)

    def _fire(self, job_id: str, at: float, following: float | None, state: str, flags: int, due: float | None) -> Run:
        row = self.job(job_id)
        run = Run(job_id, _seconds(row["next_run_at"]) if due is None else due)
        if state == "skipped":
            self._record(at, run, "skipped", fired_at=iso(at), epoch=self.epoch, note={"reason": "overlap"})
        else:
            self._insert_run(at, run, state, max(at, run.due), epoch=self.epoch, flags=flags)
        self.set_job(
            at, job_id, next_run_at=None if following is None else iso(following), run_count=row["run_count"] + 1,
            last_run_at=iso(run.due), status="ended" if following is None else row["status"],
        )  # fmt: skip
        return run

    def miss(
        self, job_id: str, at: float, last: float, count: int, reason: str, following: float, runs: float | None = None
    ) -> Run | None:
        """Records the late occurrences up to `last` as missed; `runs` is the one that is fired all the same."""
        self.begin_transaction()
        first = _seconds(self.job(job_id)["next_run_at"])
        note = {"reason": reason, "count": count, "first": iso(first), "last": iso(last)}
        self._record(at, Run(job_id, first), "missed", fired_at=iso(at), epoch=self.epoch, note=note)
        if runs is not None:
            return self._fire(job_id, at, following, "queued", 2, runs)
        self.set_job(at, job_id, next_run_at=iso(following))
        return None

    @property
    def epoch(self) -> int:
        return int(self.rows("shards")[0]["epoch"])

    # Runs

    def claim(self, at: float, *runs: Run, worker: str = "worker-1") -> Claim:
        self.begin_transaction()
        rows = [self.rows("runs")[run.job_id, iso(run.due)] for run in runs]
        for run in runs:
            self._delete_run(at, run)
        claim = Claim(self.new_id(at), worker, list(runs), [row["attempt"] + 1 for row in rows])
        self.write(
            at, "claims", "insert", None,
            {
                "claim_id": claim.claim_id, "worker_id": worker, "claimed_at": iso(at), "lease_until": iso(at + 5),
                "job_ids": [run.job_id for run in runs], "scheduled_ats": [iso(run.due) for run in runs],
                "fired_ats": [row["fired_at"] for row in rows], "epochs": [row["epoch"] for row in rows],
                "attempts": list(claim.attempts), "flags": [row["flags"] for row in rows],
                "released": [], "cancelled": [],
            },
        )  # fmt: skip
        return claim

    def say(self, at: float, word: str, claim: Claim, run: Run, *, accepted: bool = True) -> None:
        self.sink.append(
            {
                "n": len(self.sink) + 1, "at": START + at, "word": word, "job": self.job(run.job_id)["name"],
                "job_id": run.job_id, "run_id": run.run_id, "scheduled_at": START + run.due,
                "attempt": claim.attempts[claim.runs.index(run)], "token": claim.claim_id, "worker": claim.worker,
                "accepted": accepted, "execution": f"{claim.claim_id}:{run.run_id}",
            }
        )  # fmt: skip

    def execute(self, claim: Claim, run: Run, begin: float, end: float) -> None:
        self.say(begin, "begin", claim, run)
        self.say((begin + end) / 2, "effect", claim, run)
        self.say(end, "end", claim, run)

    def complete(self, at: float, claim: Claim, run: Run, *, next_in_line: Run | None = None) -> None:
        self.begin_transaction()
        self._record_of(at, claim, run, "succeeded")
        self._close(at, claim)
        if next_in_line is not None:
            old = self.rows("runs")[next_in_line.job_id, iso(next_in_line.due)]
            self.write(at, "runs", "update", old, {**old, "state": "queued", "run_at": iso(at)})

    def expire(self, at: float, claim: Claim, run: Run, *, within: float) -> None:
        self.begin_transaction()
        note = {
            "reason": "expired", "start_within_seconds": within, "count": 1, "first": iso(run.due), "last": iso(run.due)
        }  # fmt: skip
        self._record_of(at, claim, run, "missed", begun=False, note=note)
        self._close(at, claim)

    def whole(self, run: Run, at: float, takes: float = 0.5) -> Claim:
        """Claims, executes and completes the run."""
        claim = self.claim(at, run)
        self.execute(claim, run, at + 0.01, at + takes)
        self.complete(at + takes + 0.01, claim, run)
        return claim

    def put_back(self, at: float, claim: Claim, run: Run, *, error: str | None, delay: float = 0) -> None:
        """Puts the run back: for a retry (with an error), or by a snooze or at shutdown (without)."""
        self.begin_transaction()
        old = self.rows("claims")[claim.claim_id]
        place = claim.runs.index(run)
        self.write(at, "claims", "update", old, {**old, "released": [*old["released"], place + 1]})
        attempt = old["attempts"][place]
        if error is not None:
            self._tried(at, claim, run, attempt, error)
        state = "queued" if error is None else "retrying"
        self._insert_run(at, run, state, at + delay, epoch=old["epochs"][place], attempt=attempt - (error is None))
        self._close(at, claim)

    def bury(self, at: float, claim: Claim, run: Run) -> None:
        self.begin_transaction()
        self._tried(at, claim, run, self.rows("claims")[claim.claim_id]["attempts"][claim.runs.index(run)], "Permanent")
        self._record_of(at, claim, run, "dead")
        letter = {"job_id": run.job_id, "scheduled_at": iso(run.due), "buried_at": iso(at)}
        self.write(at, "dead_letters", "insert", None, letter)
        self._close(at, claim)

    def redrive(self, at: float, run: Run) -> None:
        self.begin_transaction()
        key = (run.job_id, iso(run.due))
        self.write(at, "dead_letters", "delete", self.rows("dead_letters")[key], None)
        old = self.rows("history")[key]
        self.write(at, "history", "delete", old, None)
        self._insert_run(at, run, "queued", at, epoch=old["epoch"])
        self.asked("redrive", run.job_id, at, answer={"run_id": run.run_id}, run_id=run.run_id)

    def beat(self, at: float, claim: Claim) -> None:
        self.begin_transaction()
        old = self.rows("claims")[claim.claim_id]
        self.write(at, "claims", "update", old, {**old, "lease_until": iso(at + 5)})

    def rescue(self, at: float, claim: Claim) -> None:
        old = self.rows("claims")[claim.claim_id]
        if _seconds(old["lease_until"]) >= at:
            # The worker is known to be gone, so its lease is ended first.
            self.begin_transaction()
            self.write(at, "claims", "update", old, {**old, "lease_until": iso(at - 0.001)})
            old = self.rows("claims")[claim.claim_id]
        self.begin_transaction()
        for place, run in enumerate(claim.runs):
            attempt = old["attempts"][place]
            self._tried(at, claim, run, attempt, "LeaseLost")
            self._insert_run(at, run, "queued", at, epoch=old["epochs"][place], attempt=attempt)
        self.write(at, "claims", "delete", old, None)

    def forgets(self, job_id: str, at: float, table: str = "jobs") -> None:
        """Adds a change that the old primary had committed and the promoted standby never received."""
        self.forgotten.append(
            {"n": len(self.forgotten) + 1, "txid": 1, "at": START + at, "table": table, "op": "insert", "old": None,
             "new": {"job_id": job_id}}
        )  # fmt: skip

    def fault(self, kind: str, target: str, begun: float, ended: float) -> None:
        number = len(self.faults) + 1
        self.faults.append(
            {"n": number, "kind": kind, "target": target, "begun": START + begun, "ended": START + ended, "details": {}}
        )
        self.run["healed"] = max(self.run["healed"], START + ended)

    # Parts of transactions

    def _insert_run(
        self, at: float, run: Run, state: str, run_at: float, *, epoch: int | None, attempt: int = 0, flags: int = 0
    ) -> None:
        row = {
            "job_id": run.job_id, "scheduled_at": iso(run.due),
            "run_at": INFINITY if state == "waiting" else iso(run_at),
            "fired_at": iso(at), "epoch": epoch, "shard": 0, "priority": 5, "attempt": attempt, "flags": flags,
            "state": state, "queue": "default",
        }  # fmt: skip
        self.write(at, "runs", "insert", None, row)

    def _delete_run(self, at: float, run: Run) -> None:
        self.write(at, "runs", "delete", self.rows("runs")[run.job_id, iso(run.due)], None)

    def _record(self, at: float, run: Run, status: str, **values: Any) -> None:
        row = {
            "job_id": run.job_id, "scheduled_at": iso(run.due), "fired_at": None, "started_at": None,
            "finished_at": iso(at), "claim_id": None, "worker_id": None, "epoch": None, "attempt": 0, "flags": 0,
            "status": status, "note": None,
        }  # fmt: skip
        self.write(at, "history", "insert", None, {**row, **values})

    def _record_of(
        self, at: float, claim: Claim, run: Run, status: str, *, begun: bool = True, note: Document | None = None
    ) -> None:
        old = self.rows("claims")[claim.claim_id]
        place = claim.runs.index(run)
        self._record(
            at, run, status, claim_id=claim.claim_id, worker_id=claim.worker,
            attempt=old["attempts"][place] - (not begun), epoch=old["epochs"][place], fired_at=old["fired_ats"][place],
            started_at=old["claimed_at"] if begun else None, note=note,
        )  # fmt: skip

    def _tried(self, at: float, claim: Claim, run: Run, attempt: int, error: str) -> None:
        row = {
            "job_id": run.job_id, "scheduled_at": iso(run.due), "attempt": attempt, "claim_id": claim.claim_id,
            "worker_id": claim.worker, "finished_at": iso(at), "error": {"type": error, "message": "as drawn"},
        }  # fmt: skip
        self.write(at, "attempts", "insert", None, row)

    def _close(self, at: float, claim: Claim) -> None:
        """Closes the claim if all its runs have ended or been released."""
        old = self.rows("claims")[claim.claim_id]
        history = self.rows("history")
        if all(
            place + 1 in old["released"] or (run.job_id, iso(run.due)) in history
            for place, run in enumerate(claim.runs)
        ):
            self.write(at, "claims", "delete", old, None)

    # Files

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        tables: dict[str, dict[Any, Document]] = {
            name: {} for name in ("jobs", "runs", "claims", "history", "catch_ups")
        }
        for line in sorted(self.audit, key=lambda line: line["n"]):
            rows = tables.setdefault(line["table"], {})
            if line["new"] is None:
                rows.pop(_identity(line["table"], line["old"]), None)
            else:
                rows[_identity(line["table"], line["new"])] = line["new"]
        final = {**self.final, "tables": {name: list(rows.values()) for name, rows in tables.items()}}
        final["tables"] |= self.final.get("tables", {})
        (folder / "run.json").write_text(json.dumps(self.run))
        (folder / "final.json").write_text(json.dumps(final))
        for name, lines in (
            ("audit", self.audit), ("sink", self.sink), ("operations", self.operations), ("faults", self.faults),
            ("forgotten", self.forgotten),
        ):  # fmt: skip
            (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return folder


def _identity(table: str, row: Document) -> Any:
    match table:
        case "jobs":
            return row["job_id"]
        case "claims":
            return row["claim_id"]
        case "shards":
            return row["shard"]
        case "attempts":
            return row["job_id"], row["scheduled_at"], row["claim_id"]
        case "changes" | "job_changes":
            return row["change_id"]
        case "catch_ups":
            return row["job_id"], row["last_at"]
        case _:
            return row["job_id"], row["scheduled_at"]


def _seconds(text: str) -> float:
    return (datetime.fromisoformat(text) - _EPOCH).total_seconds() - START


def _run(row: Document) -> Run:
    return Run(str(row["job_id"]), _seconds(row["scheduled_at"]))


@dataclass
class Told:
    """A good history of two minutes with a little of everything, and its jobs, runs and claims by name."""

    history: History
    alpha: str
    beta: str
    gamma: str
    delta: str
    runs: dict[str, Run] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)


def tell() -> Told:
    h = History()
    h.lead(0.1, 1)
    alpha = h.submit("alpha", "*/10 * * * * *", 1, first=10)
    beta = h.submit("beta", "every 10s", 2.5, first=12.5, overlap="queue")
    gamma = h.submit("gamma", "now", 3, first=None)
    delta = h.submit("delta", "every 2s", 4, first=6, overlap="parallel", missed_window="SKIP")
    h.pause(delta, 4.5)
    told = Told(h, alpha, beta, gamma, delta)
    runs, claims = told.runs, told.claims
    runs["now"] = Run(gamma, 3)
    claims["now"] = h.whole(runs["now"], 3.1)

    # A run on time, fired a little ahead.
    runs["on time"] = h.fire(alpha, 9.8, 20)
    claims["on time"] = h.whole(runs["on time"], 10.02)
    # A run of twelve seconds, and a run that waits for it.
    runs["slow"] = h.fire(beta, 12.51, 22.5, flags=8)
    claims["slow"] = h.claim(12.52, runs["slow"])
    h.say(12.53, "begin", claims["slow"], runs["slow"])
    for at in (14, 15.5, 17, 18.5):
        h.beat(at, claims["slow"])
    runs["rescued"] = h.fire(alpha, 20.01, 30)
    claims["lost"] = h.claim(20.02, runs["rescued"], worker="worker-2")
    h.say(20.03, "begin", claims["lost"], runs["rescued"])
    h.fault("kill", "worker-2", 20.5, 21)
    runs["waiting"] = h.fire(beta, 22.51, 32.5, state="waiting", flags=8)
    h.say(24, "effect", claims["slow"], runs["slow"])
    h.say(24.5, "end", claims["slow"], runs["slow"])
    h.complete(24.6, claims["slow"], runs["slow"], next_in_line=runs["waiting"])
    claims["waiting"] = h.whole(runs["waiting"], 24.7)
    # A lost worker: its run is rescued, the occurrence meanwhile is skipped, the zombie's effect is refused.
    h.rescue(26, claims["lost"])
    runs["skipped"] = h.fire(alpha, 30.01, 40, state="skipped")
    claims["again"] = h.claim(31, runs["rescued"])
    h.say(31.01, "begin", claims["again"], runs["rescued"])
    h.say(31.2, "effect", claims["lost"], runs["rescued"], accepted=False)
    h.say(31.5, "effect", claims["again"], runs["rescued"])
    h.say(31.6, "end", claims["again"], runs["rescued"])
    h.complete(31.7, claims["again"], runs["rescued"])
    runs["before the change"] = h.fire(beta, 32.51, 42.5)
    h.whole(runs["before the change"], 32.52)
    # A run that is fired ahead and retracted by a change.
    taken_back = h.fire(beta, 42.2, 52.5)
    h.change(beta, 42.3, "every 20s", 62.5, taken_back)
    # A failure and its retry.
    runs["retried"] = h.fire(alpha, 40.01, 50)
    claims["failed"] = h.claim(40.02, runs["retried"])
    h.say(40.03, "begin", claims["failed"], runs["retried"])
    h.say(40.5, "end", claims["failed"], runs["retried"])
    h.put_back(40.6, claims["failed"], runs["retried"], error="ValueError", delay=1)
    claims["retried"] = h.whole(runs["retried"], 41.7)
    h.pause(alpha, 45)
    h.resume(alpha, 55, 60)
    h.lead(56, 2)
    # A snooze.
    runs["snoozed"] = h.fire(alpha, 60.01, 70)
    claims["snoozed"] = h.claim(60.02, runs["snoozed"])
    h.say(60.03, "begin", claims["snoozed"], runs["snoozed"])
    h.say(60.04, "end", claims["snoozed"], runs["snoozed"])
    h.put_back(60.05, claims["snoozed"], runs["snoozed"], error=None, delay=1)
    claims["woken"] = h.whole(runs["snoozed"], 61.1)
    runs["after the change"] = h.fire(beta, 62.51, 82.5)
    h.whole(runs["after the change"], 62.52)
    # A run that is buried and redriven.
    runs["dead"] = h.fire(alpha, 70.01, 80)
    claims["dead"] = h.claim(70.02, runs["dead"])
    h.say(70.03, "begin", claims["dead"], runs["dead"])
    h.say(70.04, "end", claims["dead"], runs["dead"])
    h.bury(70.1, claims["dead"], runs["dead"])
    h.redrive(75, runs["dead"])
    claims["redriven"] = h.whole(runs["dead"], 75.1)
    # An outage: alpha's latest missed occurrence runs, delta's do not.
    h.resume(delta, 78, 80)
    h.fault("postgres-crash", "primary", 79, 101)
    h.lead(101.5, 3)
    runs["once"] = _some(h.miss(alpha, 102.1, 80, 1, "RUN_ONCE", 100, runs=90))
    h.whole(runs["once"], 102.2)
    runs["late"] = h.fire(alpha, 102.9, 110)
    h.whole(runs["late"], 103)
    runs["dropped"] = Run(delta, 80)
    h.miss(delta, 102.12, 96, 9, "SKIP", 98)
    for due in (98, 100, 102):
        h.whole(h.fire(delta, 102.2 + due / 1000, due + 2), 102.4 + due / 1000)
    h.cancel(beta, 103.5)
    h.pause(delta, 103.8)
    runs["last"] = h.fire(alpha, 110.01, 120)
    claims["last"] = h.whole(runs["last"], 110.02)
    runs["triggered"] = h.trigger(alpha, 112)
    h.whole(runs["triggered"], 112.1)
    h.pause(alpha, 115)
    h.final["explained"] = [{"job_id": alpha, "at": START + 20, "answer": {"verdict": "fired"}}]
    return told


def _some(run: Run | None) -> Run:
    assert run is not None
    return run


def random_history(seed: int, seconds: int = 120, jobs: int = 6) -> History:
    """A good history of many jobs, second by second, with random failures, lost workers, snoozes and pauses."""
    dice = random.Random(seed)
    h = History()
    h.lead(0.01, 1)
    lives: list[_Life] = []
    for number in range(jobs):
        period = dice.choice((2, 3, 5, 10))
        at = round(0.1 + number * 0.05 + dice.random() / 100, 6)
        interval = dice.random() < 0.5
        first = at + period if interval else float(period)
        schedule = f"every {period}s" if interval else f"*/{period} * * * * *"
        overlap = dice.choice(("skip", "queue", "parallel"))
        lives.append(
            _Life(h.submit(f"job-{number}", schedule, at, first=first, overlap=overlap), period, first, overlap)
        )
    epoch = 1
    for tick in range(1, seconds):
        if dice.random() < 0.02:
            epoch += 1
            h.lead(tick - 0.4, epoch)
        for number, life in enumerate(lives):
            life.step(h, dice, tick + number * 0.01 + 0.3)
    for number, life in enumerate(lives):
        life.end(h, seconds + number * 0.01 + 0.2)
    h.run["settled"], h.run["ended"] = START + seconds + 60, START + seconds + 61
    return h


@dataclass
class _Life:
    job_id: str
    period: int
    due: float
    overlap: str
    line: list[Run] = field(default_factory=list)
    claim: Claim | None = None
    until: float = 0.0
    paused: bool = False

    def step(self, h: History, dice: random.Random, at: float) -> None:
        self._work(h, dice, at)
        if self.paused:
            if dice.random() < 0.2:
                while self.due <= at + 0.05:
                    self.due = round(self.due + self.period, 6)
                h.resume(self.job_id, at + 0.05, self.due)
                self.paused = False
            return
        if dice.random() < 0.02:
            h.pause(self.job_id, at + 0.05)
            self.paused = True
            return
        while self.due <= at + 0.06:
            following = round(self.due + self.period, 6)
            if self.overlap == "parallel":
                h.whole(h.fire(self.job_id, at + 0.06, following), at + 0.07, takes=0.001)
            elif not self.line:
                self.line.append(h.fire(self.job_id, at + 0.06, following))
                self.until = at
            elif self.overlap == "skip":
                h.fire(self.job_id, at + 0.06, following, state="skipped")
            else:
                self.line.append(h.fire(self.job_id, at + 0.06, following, state="waiting"))
            self.due = following

    def _work(self, h: History, dice: random.Random, at: float) -> None:
        """Advances the first run of the line: it is claimed, or its claim ends in one of the possible ways."""
        if not self.line or at < self.until:
            return
        run = self.line[0]
        if self.claim is None:
            self.claim = h.claim(at, run)
            h.say(at + 0.001, "begin", self.claim, run)
            self.until = at + dice.choice((0, 0, 1, 4))
            h.beat(at + 0.005, self.claim)
            return
        claim, self.claim = self.claim, None
        fate = dice.random()
        tried = h.rows("claims")[claim.claim_id]["attempts"][0]
        if fate < 0.1 and tried < 4:
            h.fault("kill", claim.worker, at - 0.01, at)
            h.rescue(at + 0.02, claim)
        elif fate < 0.2 and tried < 4:
            h.say(at, "end", claim, run)
            h.put_back(at + 0.01, claim, run, error="ValueError", delay=1)
            self.until = at + 1
        elif fate < 0.3:
            h.say(at, "end", claim, run)
            h.put_back(at + 0.01, claim, run, error=None, delay=0.5)
            self.until = at + 0.5
        else:
            h.say(at, "effect", claim, run)
            h.say(at + 0.001, "end", claim, run)
            self._done(h, at, claim, run)

    def _done(self, h: History, at: float, claim: Claim, run: Run) -> None:
        self.line.pop(0)
        h.complete(at + 0.01, claim, run, next_in_line=self.line[0] if self.line else None)

    def end(self, h: History, at: float) -> None:
        if not self.paused:
            h.pause(self.job_id, at)
        while self.line:
            at += 0.02
            run = self.line[0]
            claim = self.claim or h.claim(at, run)
            if self.claim is None:
                h.say(at + 0.001, "begin", claim, run)
            h.say(at + 0.002, "end", claim, run)
            self.claim = None
            self._done(h, at + 0.002, claim, run)
