"""Reads the records of one run, which README.md describes, and sorts them. Judges nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# Stands for the store's `infinity`; later than any real time.
INFINITY = 1 << 62
# A row trigger names the partition of these tables, not the table.
_PARTITIONED = ("history", "attempts")


class BadRecords(Exception):
    """A file of records is missing or cannot be read; the message names it and the line."""


@dataclass(slots=True)
class Row:
    """One change of one row of the store."""

    n: int
    txid: int
    at: int
    table: str
    op: str
    old: dict[str, Any] | None
    new: dict[str, Any] | None

    @property
    def any(self) -> dict[str, Any]:
        return self.new or self.old or {}


@dataclass(slots=True)
class Word:
    """One line of the sink: one thing that a handler did."""

    n: int
    at: int
    word: str
    job: str
    job_id: str
    scheduled_at: int
    attempt: int
    token: str
    worker: str
    accepted: bool | None
    run_id: str
    execution: str

    @property
    def key(self) -> tuple[str, int]:
        return (self.job_id, self.scheduled_at)


@dataclass(slots=True)
class Operation:
    """One request of a client. `returned` is INFINITY if its outcome is unknown: it may still take effect."""

    id: Any
    op: str
    job: str | None
    invoked: int
    returned: int
    outcome: str
    request: dict[str, Any]
    answer: Any
    document: dict[str, Any]


@dataclass(slots=True)
class Fault:
    n: int
    kind: str
    target: str
    begun: int
    ended: int
    details: Any


@dataclass(slots=True)
class Records:
    folder: Path
    run: dict[str, Any]
    audit: list[Row] = field(default_factory=list)
    forgotten: list[Row] = field(default_factory=list)
    sink: list[Word] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    final: dict[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.run.get("settings") or {})

    def setting(self, name: str, default: float) -> int:
        """A length of time from the settings, in microseconds."""
        value = self.settings.get(name, self.settings.get(f"{name}_seconds"))
        return round((default if value is None else float(value)) * 1_000_000)

    def table(self, name: str) -> list[dict[str, Any]]:
        tables = self.final.get("tables") or {}
        return list(tables.get(name) or [])


_known_times: dict[str, int] = {}


def micros(value: Any) -> int:
    """A time as microseconds since 1970: from seconds as a number, or ISO-8601 text."""
    if isinstance(value, str):
        known = _known_times.get(value)
        if known is None:
            known = _known_times[value] = _read_time(value)
        return known
    return round(float(value) * 1_000_000)


def micros_or_none(value: Any) -> int | None:
    return None if value is None else micros(value)


def _read_time(text: str) -> int:
    if text == "infinity":
        return INFINITY
    if text == "-infinity":
        return -INFINITY
    read = datetime.fromisoformat(text)
    return ((read if read.tzinfo else read.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def key_of_run_id(run_id: str) -> tuple[str, int] | None:
    """The job id and the occurrence that a run id spells: microseconds since 1970 plus 2**62, in hex."""
    job_id, _, hexed = run_id.rpartition("-")
    try:
        return (job_id, int(hexed, 16) - (1 << 62)) if job_id and len(hexed) == 16 else None
    except ValueError:
        return None


def read(folder: Path) -> Records:
    _known_times.clear()
    path = folder / "run.json"
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadRecords(f"{path} cannot be read: {error}") from error
    records = Records(folder, run)
    records.audit = sorted((_row(line) for line in _lines(folder / "audit.jsonl")), key=lambda row: row.n)
    records.forgotten = [_row(line) for line in _lines(folder / "forgotten.jsonl")]
    records.sink = sorted((_word(line) for line in _lines(folder / "sink.jsonl")), key=lambda word: word.n)
    records.operations = sorted(
        (_operation(line) for line in _lines(folder / "operations.jsonl")), key=lambda one: one.invoked
    )
    # A fault that could not be injected was recorded as skipped; it does not count.
    injected = (line for line in _lines(folder / "faults.jsonl") if "skipped" not in (line.get("details") or {}))
    records.faults = sorted((_fault(line) for line in injected), key=lambda one: one.begun)
    final = folder / "final.json"
    if final.exists():
        records.final = json.loads(final.read_text(encoding="utf-8"))
    return records


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        lines = file.readlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except ValueError as error:
            # A writer that was killed may leave an incomplete last line.
            if number == len(lines) and not line.endswith("\n"):
                return
            raise BadRecords(f"{path}, line {number}: {error}") from error


def table_name(name: str) -> str:
    name = name.rpartition(".")[2]
    if name == "job_changes":
        return "changes"
    for parent in _PARTITIONED:
        if name.startswith(f"{parent}_"):
            return parent
    return name


def _row(line: dict[str, Any]) -> Row:
    return Row(
        int(line["n"]), int(line["txid"]), micros(line["at"]), table_name(line["table"]), line["op"].lower(),
        line.get("old"), line.get("new"),
    )  # fmt: skip


def _word(line: dict[str, Any]) -> Word:
    return Word(
        int(line["n"]), micros(line["at"]), line["word"], str(line.get("job")), str(line["job_id"]),
        micros(line["scheduled_at"]), int(line["attempt"]), str(line["token"]), str(line.get("worker")),
        line.get("accepted"), str(line.get("run_id")), str(line.get("execution")),
    )  # fmt: skip


def _operation(line: dict[str, Any]) -> Operation:
    outcome = line["outcome"]
    returned = line.get("returned")
    request = line.get("request")
    return Operation(
        line.get("id"), line["op"], line.get("job"), micros(line["invoked"]),
        # An operation without an answer may still take effect.
        INFINITY if returned is None or outcome == "unknown" else micros(returned),
        outcome, request if isinstance(request, dict) else {}, line.get("answer"), line,
    )  # fmt: skip


def _fault(line: dict[str, Any]) -> Fault:
    begun = micros(line["begun"])
    ended = line.get("ended")
    return Fault(
        int(line.get("n", 0)), str(line["kind"]), str(line.get("target")), begun,
        begun if ended is None else micros(ended), line.get("details"),
    )  # fmt: skip
