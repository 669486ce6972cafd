"""Inserts many new jobs by COPY, with the same rows as `jobs/submit.sql` and a fraction of its cost.

The shape that jobs of a batch share is encoded once; each job adds its id, its payload and its time. Duly encodes the
rows and not the driver: that needs no prepared statement, which a pooler in transaction mode would not keep, and no
codec, which the owner of a lent connection may have replaced.

COPY has no `on conflict`. So it takes no job with a dedupe_key, and a copy whose answer was lost is never copied again:
`jobs.submit` with the same rows finds out which exist.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from duly.model import to_micros
from duly.store import audit
from duly.store.jobs import OWN_FIELDS, NewJob, is_noted, keeps_trace
from duly.store.pool import LARGE, Querier

# The columns of the same name as a field of `NewJob` that all jobs of a shape share.
_SHAPE_COLUMNS = tuple(name for name in NewJob._fields[OWN_FIELDS:] if name != "immediate")
JOB_COLUMNS = (
    "job_id", "shard", "payload", "name", "payload_ref", "next_run_at", "schedule",
    # From here on, the same for all jobs of a shape.
    *_SHAPE_COLUMNS, "last_run_at", "run_count", "status", "created_at", "updated_at",
)  # fmt: skip
RUN_COLUMNS = ("job_id", "shard", "scheduled_at", "run_at", "fired_at", "priority", "flags", "state", "queue")

# As the SQL function duly.announce_due: jobs due within this time are announced, up to this many by name.
_NEAR = timedelta(minutes=15)
_MAX_NAMED = 50
# Bytes per piece: the server stores one piece while the next is encoded.
_PIECE_BYTES = 128 * 1024

_BEGIN = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
_EPOCH_US = to_micros(datetime(2000, 1, 1, tzinfo=UTC))
_text_head = struct.Struct(">i").pack
_json_head = struct.Struct(">iB").pack
_smallint = struct.Struct(">ih").pack
_integer = struct.Struct(">ii").pack
_timestamp = struct.Struct(">iq").pack
# The number of columns, the id and the shard; for a job also the length of its payload and the version of jsonb.
_job_head = struct.Struct(">hi16sihiB").pack
_run_head = struct.Struct(">hi16sih").pack


def can_copy(store: Querier, jobs: Sequence[NewJob]) -> bool:
    """Whether COPY can take these jobs and pays: few jobs are faster in one statement than in a transaction of
    several."""
    return len(jobs) >= LARGE and store.can_copy and all(job.dedupe_key is None for job in jobs)


async def copy(
    store: Querier,
    jobs: Sequence[NewJob],
    *,
    created_at: datetime,
    trace: str | None = None,
    note: str | None = None,
) -> set[UUID]:
    """Inserts jobs that cannot exist yet: all of them, or none and an error. Returns their ids. `note`: as for
    `jobs.submit`."""
    columns = JOB_COLUMNS
    if keeps_trace(store, trace):
        columns = (*JOB_COLUMNS, "trace")
    else:
        trace = None

    async def work(within: Querier) -> None:
        row = await within.row("jobs/clock")
        assert row is not None
        now: datetime = row["now"]
        await within.copy("jobs", columns, job_bytes(jobs, created_at=created_at, now=now, trace=trace))
        immediate = [job for job in jobs if job.immediate]
        if immediate:
            await within.copy("runs", RUN_COLUMNS, run_bytes(immediate, now=now))
        queues, due = sorted({job.queue for job in immediate}), _announcement(jobs, now)
        if queues or due is not None:
            await within.fetch("jobs/announce", queues, due)
        if note is not None:
            await audit.note_copied(within, [job.job_id for job in jobs if is_noted(job)], note=note)

    await store.together(work)
    return {job.job_id for job in jobs}


def _announcement(jobs: Sequence[NewJob], now: datetime) -> str | None:
    """The notification that `jobs/submit.sql` would send to the leaders."""
    horizon = now + _NEAR
    near = [(job, job.next_run_at) for job in jobs if job.next_run_at is not None and job.next_run_at <= horizon]
    if len(near) > _MAX_NAMED:
        ids = [job.job_id for job, _ in near]
        return f"*:{min(ids)}:{max(ids)}"
    return ",".join(f"{job.shard}:{job.job_id}:{to_micros(due)}" for job, due in near) or None


def job_bytes(
    jobs: Iterable[NewJob], *, created_at: datetime, now: datetime, trace: str | None = None
) -> Iterator[bytes]:
    """Rows of `JOB_COLUMNS`, and of the column `trace` if there is one."""
    return _in_pieces(_job_rows(jobs, created_at, now, trace))


def run_bytes(jobs: Iterable[NewJob], *, now: datetime) -> Iterator[bytes]:
    """Rows of `RUN_COLUMNS`, for jobs that run now."""
    return _in_pieces(_run_rows(jobs, now))


def _job_rows(jobs: Iterable[NewJob], created_at: datetime, now: datetime, trace: str | None) -> Iterator[bytes]:
    columns = len(JOB_COLUMNS) + (trace is not None)
    end = b"" if trace is None else _text(trace)
    texts: dict[str | None, bytes] = {None: _NULL}
    shapes: dict[tuple[object, ...], bytes] = {}
    last: tuple[object, ...] = ()
    rest = b""
    for job in jobs:
        name, payload_ref, schedule = job.name, job.payload_ref, job.schedule
        shape = job[OWN_FIELDS:]
        # Mostly it holds the very objects of the job before: comparing them is faster than hashing.
        if shape != last:
            last = shape
            if shape not in shapes:
                shapes[shape] = _shape_bytes(job, created_at, now) + end
            rest = shapes[shape]
        for text in (name, payload_ref, schedule):
            if text not in texts:
                texts[text] = _text(text)
        content = job.payload.encode()
        yield b"".join(
            (
                _job_head(columns, 16, job.job_id.bytes, 2, job.shard, len(content) + 1, 1),
                content,
                texts[name],
                texts[payload_ref],
                _moment(job.next_run_at),
                texts[schedule],
                rest,
            )
        )


def _shape_bytes(job: NewJob, created_at: datetime, now: datetime) -> bytes:
    created = _moment(created_at)
    return b"".join(
        (
            *(_ENCODERS.get(name, _text)(getattr(job, name)) for name in _SHAPE_COLUMNS),
            _moment(now if job.immediate else None),
            _number(int(job.immediate)),
            _text("ended" if job.immediate else "active"),
            created,
            created,
        )
    )


def _run_rows(jobs: Iterable[NewJob], now: datetime) -> Iterator[bytes]:
    columns = len(RUN_COLUMNS)
    lanes: dict[tuple[str, int], bytes] = {}
    moments = _moment(now) * 3
    for job in jobs:
        lane = job.queue, job.priority
        if lane not in lanes:
            lanes[lane] = moments + _smallint(2, job.priority) + _smallint(2, 0) + _text("queued") + _text(job.queue)
        yield _run_head(columns, 16, job.job_id.bytes, 2, job.shard) + lanes[lane]


def _in_pieces(rows: Iterable[bytes]) -> Iterator[bytes]:
    piece = [_BEGIN]
    size = 0
    for row in rows:
        piece.append(row)
        size += len(row)
        if size >= _PIECE_BYTES:
            yield b"".join(piece)
            piece.clear()
            size = 0
    piece.append(_END)
    yield b"".join(piece)


def _text(value: str | None) -> bytes:
    if value is None:
        return _NULL
    content = value.encode()
    return _text_head(len(content)) + content


def _json(value: str | None) -> bytes:
    if value is None:
        return _NULL
    content = value.encode()
    return _json_head(len(content) + 1, 1) + content


def _moment(value: datetime | None) -> bytes:
    return _NULL if value is None else _timestamp(8, to_micros(value) - _EPOCH_US)


def _number(value: int | None) -> bytes:
    return _NULL if value is None else _integer(4, value)


# For the columns of a shape that are not strings. `tests/test_recipes.py` compares them with the types of the table.
_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "target": _json,
    "start_at": _moment,
    "end_at": _moment,
    "max_runs": _number,
    "priority": lambda value: _smallint(2, value),
    "policy": _json,
    "labels": _json,
}
