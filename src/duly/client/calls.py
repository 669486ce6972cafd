"""Every call of the REST API: its request, and the function that reads its response. No I/O.

These functions are the clients' methods: `clients` sends the calls that they build. A `Call` is built once, so every
attempt sends the same bytes; a function that needs several calls is a generator that yields them one by one.

Each function decides whether its call is `repeatable`. Calls that only read are. So are `pause`, `resume`, `cancel` and
`change`: the second time they find the state that they want. A submit is repeatable because it carries a key: see
`submit`. `trigger`, `redrive`, `cancel_run` and `purge` are not: they are retried only if they did not arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeVar, Unpack
from urllib.parse import quote
from uuid import UUID, uuid4

from duly.client import documents
from duly.client.documents import Document, encode, job_body, plain
from duly.client.trying import refusal
from duly.errors import DulyError, InvalidInput, NotFound
from duly.formats import time_text
from duly.model import (
    AuditEntry,
    AuditFilter,
    Cluster,
    Counts,
    DeadLetter,
    DeadLetterFilter,
    DstFold,
    DstGap,
    Explanation,
    Forecast,
    Incident,
    Job,
    JobChanges,
    JobOptions,
    JobRequest,
    JobStatus,
    LogLine,
    LogPage,
    MaintenanceWindow,
    Monitor,
    Occurrence,
    Page,
    Preview,
    Run,
    Submitted,
    Swept,
    each_request,
    make_request,
)

PREFIX = "/api/v1"
#: The API's own limits for one batch.
MAX_BATCH_JOBS = 10_000
MAX_BATCH_BYTES = 8 * 1024 * 1024
PAGE = 200

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful response: its JSON document (None if it has no body) and its headers."""

    status: int
    document: Any
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and the function that reads its response."""

    method: str
    path: str
    read: Callable[[Answer], T]
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True

    def __iter__(self) -> Generator[Call[Any], Any, T]:
        answer: T = yield self
        return answer


class Steps(Protocol[T_co]):
    """One call, or a generator of several, with a result."""

    def __iter__(self) -> Generator[Call[Any], Any, T_co]: ...


@dataclass(frozen=True, slots=True)
class Pages(Generic[Item]):
    """A list in pages: `at` builds the call for the page at a cursor."""

    at: Callable[[str | None], Call[Page[Item]]]


@dataclass(frozen=True, slots=True)
class BatchItem:
    """The result for one job of a batch: its id, or the error that `submit` would have raised."""

    job_id: UUID | None
    created: bool
    error: DulyError | None = None


# Submitting


def request_of(
    handler: str | Mapping[str, Any],
    payload: Any = None,
    *,
    schedule: str | datetime | None = None,
    run_at: datetime | None = None,
    **options: Unpack[JobOptions],
) -> JobRequest:
    """The request that `submit` would send, for `submit_many`."""
    return make_request(handler, payload, run_at, schedule, options, {})


def submit(
    handler: str | Mapping[str, Any],
    payload: Any = None,
    *,
    schedule: str | datetime | None = None,
    run_at: datetime | None = None,
    idempotent: bool = True,
    allow_unknown_handler: bool = False,
    **options: Unpack[JobOptions],
) -> Generator[Call[Any], Any, Job]:
    """Submits a job. Without `run_at` or `schedule` it runs now.

    The response can be lost after the job was stored. To make a retry safe, a submit without a `dedupe_key` gets one
    from the client (`client:` and a random part), which is stored with the job and shown in it. With `idempotent=False`
    it gets none, and a submit whose outcome is unknown raises `ApiUnavailable` instead of being retried.

    A task that no worker has is refused, as its name may be misspelt, unless `allow_unknown_handler` is set.
    """
    request = request_of(handler, payload, schedule=schedule, run_at=run_at, **options)
    submitted = yield submit_request(request, idempotent=idempotent, allow_unknown_handler=allow_unknown_handler)
    job: Job = submitted.job
    return job


def submit_request(
    request: JobRequest, *, idempotent: bool = True, allow_unknown_handler: bool = False
) -> Call[Submitted]:
    """Submits a request made by `request_of`, and also tells whether the job is new."""
    own_key = request.dedupe_key is None and idempotent
    request = _keyed(request) if own_key else request

    def read(answer: Answer) -> Submitted:
        # The key is this call's own, so a job that already has it comes from an earlier attempt of this call.
        return Submitted(_job(answer), own_key or answer.status == 201)

    return Call(
        "POST",
        "/jobs",
        read,
        query=_flags(allow_unknown_handler=allow_unknown_handler),
        body=encode(job_body(request)),
        repeatable=request.dedupe_key is not None,
    )


def submit_many(
    requests: Iterable[JobRequest | Mapping[str, Any]],
    *,
    atomic: bool = False,
    idempotent: bool = True,
    allow_unknown_handler: bool = False,
) -> Generator[Call[Any], Any, list[BatchItem]]:
    """Submits many jobs, up to 10,000 per call of the API, and returns their results in order.

    A job is a request made by `request_of`, or a mapping of its arguments: `{"handler": "send", "payload": {…}}`.
    With `atomic` either all are stored or, with an error, none; they must then fit into one call. Keys are as in
    `submit`.
    """
    given = each_request(requests, lambda handler, fields: request_of(handler, **fields))
    own_keys = [idempotent and request.dedupe_key is None for request in given]
    sent = [_keyed(request) if own else request for request, own in zip(given, own_keys, strict=True)]
    bodies = [encode(job_body(request)) for request in sent]
    chunks = list(_chunks(bodies))
    if atomic and len(chunks) > 1:
        raise InvalidInput("jobs", f"must be at most {MAX_BATCH_JOBS} and {MAX_BATCH_BYTES} bytes with atomic")
    found: list[BatchItem] = []
    for chunk in chunks:
        found += yield Call(
            "POST",
            "/jobs/batch",
            _batch_items,
            query=_flags(atomic=atomic, allow_unknown_handler=allow_unknown_handler),
            body=b"[" + b",".join(bodies[chunk]) + b"]",
            repeatable=all(request.dedupe_key is not None for request in sent[chunk]),
        )
    return [
        replace(item, created=True) if own and item.error is None else item
        for item, own in zip(found, own_keys, strict=True)
    ]


def _keyed(request: JobRequest) -> JobRequest:
    return replace(request, dedupe_key=f"client:{uuid4()}")


def _chunks(bodies: Sequence[bytes]) -> Generator[slice, None, None]:
    start = size = 0
    for index, body in enumerate(bodies):
        if index > start and (index - start >= MAX_BATCH_JOBS or size + len(body) + 2 > MAX_BATCH_BYTES):
            yield slice(start, index)
            start, size = index, 0
        size += len(body) + 1
    if start < len(bodies):
        yield slice(start, len(bodies))


def _batch_items(answer: Answer) -> list[BatchItem]:
    found = []
    for item in answer.document["items"]:
        error = item.get("error")
        job_id = item.get("job_id")
        found.append(
            BatchItem(
                None if job_id is None else UUID(job_id),
                item["status"] == 201,
                None if error is None else refusal("submit", item["status"], error),
            )
        )
    return found


# Jobs


def jobs_page(
    *,
    status: JobStatus | None = None,
    queue: str | None = None,
    name: str | None = None,
    label: Mapping[str, str] | None = None,
    cursor: str | None = None,
    limit: int = 100,
    payload: bool = True,
) -> Call[Page[Job]]:
    """One page of jobs, newest first. A page with fewer than `limit` jobs is the last only if `next_cursor` is None.

    Without `payload` the payloads are not sent, and are None.
    """
    query = _query(status=status, queue=queue, name=name, cursor=cursor, limit=limit, payload=_asked(payload))
    for key, value in (label or {}).items():
        if "=" in key:
            raise InvalidInput(
                "label",
                f"{key[:63]!r} contains an equals sign, by which the API separates a label's name from its value",
            )
        query += (("label", f"{key}={value}"),)
    return Call("GET", "/jobs", partial(_page, read=documents.read_job), query)


def jobs(
    *,
    status: JobStatus | None = None,
    queue: str | None = None,
    name: str | None = None,
    label: Mapping[str, str] | None = None,
    payload: bool = True,
) -> Pages[Job]:
    """Every job that matches, newest first; pages are fetched as needed. Without `payload` the payloads are not sent,
    and are None."""
    return Pages(
        lambda cursor: jobs_page(
            status=status, queue=queue, name=name, label=label, cursor=cursor, limit=PAGE, payload=payload
        )
    )


def find_jobs(text: str) -> Call[list[Job]]:
    """The jobs that a person may mean by an id, the beginning of an id, or a name; newest first, at most 5."""
    query = _query(find=text, payload=_asked(True))
    return Call("GET", "/jobs", lambda answer: _page(answer, read=documents.read_job).items, query)


def get_job(job_id: str | UUID) -> Call[Job]:
    """One job, by its id."""
    return Call("GET", _path("jobs", job_id), _job)


def change(
    job_id: str | UUID,
    *,
    expected_version: int | None = None,
    reason: str | None = None,
    **changes: Unpack[JobChanges],
) -> Call[Job]:
    """Changes fields of a job. A changed schedule is planned anew.

    With `expected_version` (the `version` of a job from `get_job`), a job that was changed since raises `Conflict`.
    """
    headers = {} if expected_version is None else {"If-Match": f'"{expected_version}"'}
    # With a version, a retry after a success would conflict with itself: the version is already a newer one.
    return Call(
        "PATCH",
        _path("jobs", job_id),
        _job,
        _query(reason=reason),
        body=encode(plain(changes)),
        headers=headers,
        repeatable=expected_version is None,
    )


def cancel(job_id: str | UUID, *, running: bool = False, reason: str | None = None) -> Call[Job]:
    """Cancels a job and its waiting runs; with `running`, its running ones are told to stop."""
    return Call("DELETE", _path("jobs", job_id), _job, _query(running="cancel" if running else None, reason=reason))


def pause(job_id: str | UUID, *, reason: str | None = None, until: datetime | None = None) -> Call[Job]:
    """Pauses a job: it does not fire until it is resumed, or until a time, at which it goes on by itself."""
    given = {"reason": reason, "until": None if until is None else time_text(until)}
    body = encode({name: value for name, value in given.items() if value is not None}) if any(given.values()) else None
    return Call("POST", _path("jobs", job_id, "pause"), _job, body=body)


def resume(job_id: str | UUID, *, reason: str | None = None) -> Call[Job]:
    """Resumes a job from its next future occurrence on; occurrences during the pause are not caught up."""
    return Call("POST", _path("jobs", job_id, "resume"), _job, _query(reason=reason))


def trigger(job_id: str | UUID, *, reason: str | None = None) -> Call[Run]:
    """Starts one extra run now; the schedule is not affected."""
    return Call("POST", _path("jobs", job_id, "trigger"), _run, _query(reason=reason), repeatable=False)


def upcoming(job_id: str | UUID, *, count: int = 10) -> Call[list[Occurrence]]:
    """The next occurrences of a job, as they are planned now."""
    return Call("GET", _path("jobs", job_id, "upcoming"), _occurrences, _query(count=count))


def explain(job_id: str | UUID, *, at: datetime | None = None) -> Call[Explanation]:
    """Explains why the occurrence at this time, or the last one, fired or did not."""
    return Call("GET", _path("jobs", job_id, "explain"), _explanation, _query(at=at))


def explanations_page(
    job_id: str | UUID, *, start: datetime, end: datetime | None = None, cursor: str | None = None, limit: int = 100
) -> Call[Page[Explanation]]:
    """One page of the explanations of all occurrences from `start` to `end` (or now), oldest first."""
    query = _query(**{"from": start}, to=end, cursor=cursor, limit=limit)
    return Call("GET", _path("jobs", job_id, "explain"), partial(_page, read=documents.read_explanation), query)


def explanations(job_id: str | UUID, *, start: datetime, end: datetime | None = None) -> Pages[Explanation]:
    """Explanations of all occurrences from `start` to `end` (or now), oldest first; pages are fetched as needed."""
    return Pages(lambda cursor: explanations_page(job_id, start=start, end=end, cursor=cursor, limit=PAGE))


# Runs


def runs_page(job_id: str | UUID, *, cursor: str | None = None, limit: int = 100) -> Call[Page[Run]]:
    """One page of a job's runs, live and ended, newest first."""
    query = _query(cursor=cursor, limit=limit)
    return Call("GET", _path("jobs", job_id, "runs"), partial(_page, read=documents.read_run), query)


def runs(job_id: str | UUID) -> Pages[Run]:
    """Every run of a job, newest first; pages are fetched as needed."""
    return Pages(lambda cursor: runs_page(job_id, cursor=cursor, limit=PAGE))


def get_run(run_id: str) -> Call[Run]:
    """One run with its attempts."""
    return Call("GET", _path("runs", run_id), _run)


def run_logs_page(
    run_id: str,
    *,
    cursor: str | None = None,
    attempt: int | None = None,
    tail: int | None = None,
    since: datetime | None = None,
    limit: int = 1000,
) -> Call[LogPage]:
    """A page of what the run's handler logged and printed: from a cursor on, or the last `tail` lines.

    The cursor of a page goes on where the page ended, also later, when there is more.
    """
    query = _query(cursor=cursor, attempt=attempt, tail=tail, since=since, limit=limit)
    return Call("GET", _path("runs", run_id, "logs"), lambda answer: documents.read_log_page(answer.document), query)


def run_logs(run_id: str, *, attempt: int | None = None, since: datetime | None = None) -> Pages[LogLine]:
    """Every line that the run's handler has logged and printed so far; pages are fetched as needed."""

    def at(cursor: str | None) -> Call[Page[LogLine]]:
        call = run_logs_page(run_id, cursor=cursor, attempt=attempt, since=since)

        def read(answer: Answer) -> Page[LogLine]:
            page = call.read(answer)
            return Page(list(page.items), page.cursor if page.more else None)

        return Call(call.method, call.path, read, call.query)

    return Pages(at)


def cancel_run(run_id: str, *, reason: str | None = None) -> Call[Run]:
    """Cancels a run: a waiting run ends at once, a running one is told to stop."""
    return Call("POST", _path("runs", run_id, "cancel"), _run, _query(reason=reason), repeatable=False)


# Dead letters

_EVERYTHING = DeadLetterFilter()


def dead_letters_page(
    wanted: DeadLetterFilter = _EVERYTHING, *, cursor: str | None = None, limit: int = 100, payload: bool = True
) -> Call[Page[DeadLetter]]:
    """One page of dead letters, newest first. A page with fewer than `limit` is the last only if `next_cursor` is None.

    Without `payload` the payloads are not sent, and are None.
    """
    query = _query(**_filter(wanted), cursor=cursor, limit=limit, payload=_asked(payload))
    return Call("GET", "/dead-letters", partial(_page, read=documents.read_dead_letter), query)


def dead_letters(wanted: DeadLetterFilter = _EVERYTHING) -> Pages[DeadLetter]:
    """Every dead letter that matches, newest first, with its payload; pages are fetched as needed."""
    return Pages(lambda cursor: dead_letters_page(wanted, cursor=cursor, limit=PAGE))


def count_dead_letters(wanted: DeadLetterFilter = _EVERYTHING) -> Call[int]:
    """The number of dead letters that match."""
    return Call("GET", "/dead-letters/count", lambda answer: int(answer.document["count"]), _query(**_filter(wanted)))


def get_dead_letter(run_id: str) -> Call[DeadLetter]:
    """One dead letter, with its payload."""
    return Call("GET", _path("dead-letters", run_id), lambda answer: documents.read_dead_letter(answer.document))


def redrive(run_id: str, *, reason: str | None = None) -> Call[Run]:
    """Redrives a dead letter and returns its run: attempts start anew, the idempotency key stays."""
    return Call("POST", _path("dead-letters", run_id, "redrive"), _run, _query(reason=reason), repeatable=False)


def redrive_all(
    wanted: DeadLetterFilter = _EVERYTHING, *, reason: str | None = None
) -> Generator[Call[Any], Any, Swept]:
    """Redrives all dead letters that match now: a run that dies again meanwhile is not redriven twice."""
    dead_now: DeadLetterFilter | None = yield from those_now(wanted)
    done = refused = 0
    more = dead_now is not None
    while more and dead_now is not None:
        part: tuple[Swept, bool] = yield redrive_some(dead_now, reason=reason)
        swept, more = part
        done += swept.done
        refused = swept.refused  # they stay, so each call counts all of them again
    return Swept(done, refused)


def those_now(wanted: DeadLetterFilter = _EVERYTHING) -> Generator[Call[Any], Any, DeadLetterFilter | None]:
    """A filter for the dead letters that match now and no later ones, by no clock; None if none match."""
    cursor = None
    while True:
        page: Page[DeadLetter] = yield dead_letters_page(wanted, cursor=cursor, limit=1, payload=False)
        if page.items:
            break
        if (cursor := page.next_cursor) is None:
            return None
    after_newest = page.items[0].buried_at + timedelta(microseconds=1)
    return replace(wanted, until=after_newest if wanted.until is None else min(wanted.until, after_newest))


def redrive_some(wanted: DeadLetterFilter, *, reason: str | None = None) -> Call[tuple[Swept, bool]]:
    """Redrives one batch: its result, and whether more is left. The filter must not be empty."""

    def read(answer: Answer) -> tuple[Swept, bool]:
        document = answer.document
        return Swept(document["redriven"], document["refused"]), document["more"]

    body = encode(plain({name: value for name, value in _filter(wanted).items() if value is not None}))
    return Call("POST", "/dead-letters/redrive", read, _query(reason=reason), body=body, repeatable=False)


def purge(run_id: str, *, reason: str | None = None) -> Call[None]:
    """Deletes a dead letter."""
    return Call("DELETE", _path("dead-letters", run_id), _nothing, _query(reason=reason), repeatable=False)


def purge_all(wanted: DeadLetterFilter = _EVERYTHING, *, reason: str | None = None) -> Generator[Call[Any], Any, Swept]:
    """Deletes all dead letters that match now, but not those of runs that die meanwhile."""
    dead_now: DeadLetterFilter | None = yield from those_now(wanted)
    done = 0
    more = dead_now is not None
    while more and dead_now is not None:
        part: tuple[Swept, bool] = yield purge_some(dead_now, reason=reason)
        swept, more = part
        done += swept.done
    return Swept(done, 0)


def purge_some(wanted: DeadLetterFilter, *, reason: str | None = None) -> Call[tuple[Swept, bool]]:
    """Deletes one batch: its result, and whether more is left. The filter must not be empty."""

    def read(answer: Answer) -> tuple[Swept, bool]:
        return Swept(answer.document["purged"], 0), answer.document["more"]

    return Call("DELETE", "/dead-letters", read, _query(**_filter(wanted), reason=reason), repeatable=False)


def _filter(wanted: DeadLetterFilter) -> dict[str, Any]:
    return {name: getattr(wanted, name) for name in DeadLetterFilter.__dataclass_fields__}


# The audit trail

_ANYTHING = AuditFilter()


def audit_page(
    wanted: AuditFilter = _ANYTHING, *, cursor: str | None = None, limit: int = 100
) -> Call[Page[AuditEntry]]:
    """One page of who did what, newest first. A page with fewer than `limit` is the last only if `next_cursor` is
    None."""
    chosen = {name: getattr(wanted, name) for name in AuditFilter.__dataclass_fields__}
    query = _query(**chosen, cursor=cursor, limit=limit)
    return Call("GET", "/audit", partial(_page, read=documents.read_audit_entry), query)


def audit(wanted: AuditFilter = _ANYTHING) -> Pages[AuditEntry]:
    """Everything that was done and matches, newest first; pages are fetched as needed."""
    return Pages(lambda cursor: audit_page(wanted, cursor=cursor, limit=PAGE))


# Monitors


def monitors_page(*, cursor: str | None = None, limit: int = 100) -> Call[Page[Monitor]]:
    """One page of monitors by name, without their pings."""
    query = _query(cursor=cursor, limit=limit)
    return Call("GET", "/monitors", partial(_page, read=documents.read_monitor), query)


def monitors() -> Pages[Monitor]:
    """Every monitor by name, without its pings; pages are fetched as needed."""
    return Pages(lambda cursor: monitors_page(cursor=cursor, limit=PAGE))


def get_monitor(slug: str) -> Call[Monitor]:
    """One monitor with its last pings."""
    return Call("GET", _path("monitors", slug), _monitor)


def set_monitor(
    slug: str,
    schedule: str,
    *,
    timezone: str = "UTC",
    grace_seconds: int = 300,
    max_runtime_seconds: int | None = None,
    description: str | None = None,
    new_token: bool = False,
) -> Call[Monitor]:
    """Makes a monitor, or changes it. A new one, and with `new_token` any, comes with its `ping_path`."""
    body = {
        "schedule": schedule, "timezone": timezone, "grace_seconds": grace_seconds,
        "max_runtime_seconds": max_runtime_seconds, "description": description, "new_token": new_token,
    }  # fmt: skip
    return Call("PUT", _path("monitors", slug), _monitor, body=encode(body), repeatable=not new_token)


def remove_monitor(slug: str) -> Call[None]:
    """Removes a monitor, and closes its open incidents."""
    return Call("DELETE", _path("monitors", slug), _nothing, repeatable=False)


def ping_monitor(slug: str, *, rid: str | None = None, note: str | None = None) -> Call[None]:
    """Tells that what a monitor watches has succeeded. `rid`: an id of what ran, the same as at its start."""
    return Call("POST", _path("monitors", slug, "ping"), _nothing, _query(rid=rid), body=_noted(note))


def ping_monitor_outcome(
    slug: str, outcome: Literal["start", "fail", "log"] | int, *, rid: str | None = None, note: str | None = None
) -> Call[None]:
    """Tells that what a monitor watches starts, has failed, or has ended with this exit status; `log` leaves a note."""
    path = _path("monitors", slug, "ping", str(outcome))
    return Call("POST", path, _nothing, _query(rid=rid), body=_noted(note))


def _noted(note: str | None) -> bytes | None:
    return None if note is None else note.encode("utf-8", "replace")


# Incidents


def incidents_page(
    *, only_open: bool = True, job_id: str | UUID | None = None, cursor: str | None = None, limit: int = 100
) -> Call[Page[Incident]]:
    """One page of incidents, newest first; `only_open`: without those that are over."""
    query = _query(job_id=job_id, all=None if only_open else "true", cursor=cursor, limit=limit)
    return Call("GET", "/incidents", partial(_page, read=documents.read_incident), query)


def incidents(*, only_open: bool = True, job_id: str | UUID | None = None) -> Pages[Incident]:
    """What is wrong with jobs and monitors, newest first; pages are fetched as needed."""
    return Pages(lambda cursor: incidents_page(only_open=only_open, job_id=job_id, cursor=cursor, limit=PAGE))


def ack_incident(incident_id: str | UUID, *, by: str | None = None) -> Call[Incident]:
    """Note that somebody takes care of it; `by` defaults to the key's name. Who did so first stays."""

    def read(answer: Answer) -> Incident:
        return documents.read_incident(answer.document)

    return Call("POST", _path("incidents", incident_id) + "/ack", read, _query(by=by))


def maintenance_windows() -> Call[list[MaintenanceWindow]]:
    """The windows that are not over yet."""

    def read(answer: Answer) -> list[MaintenanceWindow]:
        return [documents.read_window(one) for one in answer.document["items"]]

    return Call("GET", "/maintenance-windows", read)


def add_maintenance_window(
    *,
    ends_at: datetime,
    starts_at: datetime | None = None,
    job_id: str | UUID | None = None,
    reason: str = "maintenance",
) -> Call[MaintenanceWindow]:
    """From `starts_at` (None: now) on, no incident is opened, for one job or all."""

    def read(answer: Answer) -> MaintenanceWindow:
        return documents.read_window(answer.document)

    body = {"ends_at": ends_at, "starts_at": starts_at, "job_id": None if job_id is None else str(job_id)}
    given = plain({name: value for name, value in body.items() if value is not None} | {"reason": reason})
    return Call("POST", "/maintenance-windows", read, body=encode(given), repeatable=False)


def remove_maintenance_window(window_id: str | UUID) -> Call[None]:
    """Removes a window; one that goes on ends with it."""
    return Call("DELETE", _path("maintenance-windows", window_id), _nothing, repeatable=False)


# Time and the cluster


def preview(
    schedule: str | None,
    *,
    timezone: str = "UTC",
    dst_gap: DstGap = "shift",
    dst_fold: DstFold = "first",
    start_at: datetime | None = None,
    end_at: datetime | None = None,
    after: datetime | None = None,
    count: int = 10,
) -> Call[Preview]:
    """The next occurrences of a schedule, without storing anything."""
    body: dict[str, Any] = {
        "schedule": schedule, "timezone": timezone, "dst_gap": dst_gap, "dst_fold": dst_fold, "start_at": start_at,
        "end_at": end_at, "after": after, "count": count,
    }  # fmt: skip
    given = plain({name: value for name, value in body.items() if value is not None})
    return Call(
        "POST", "/schedules/preview", lambda answer: documents.read_preview(answer.document), body=encode(given)
    )


def forecast(*, minutes: int = 60) -> Call[Forecast]:
    """The number of fires to come, by minute, queue and handler."""
    return Call("GET", "/forecast", lambda answer: documents.read_forecast(answer.document), _query(minutes=minutes))


def cluster() -> Call[Cluster]:
    """Schedulers, workers, and the leader of each shard."""
    return Call("GET", "/cluster", lambda answer: documents.read_cluster(answer.document))


def stats() -> Call[Counts]:
    """Counts of jobs and runs: of the whole store with an admin's key, else of the key's tenant."""
    return Call("GET", "/stats", lambda answer: documents.read_counts(answer.document))


# Reading


def _job(answer: Answer) -> Job:
    return documents.read_job(answer.document)


def _monitor(answer: Answer) -> Monitor:
    return documents.read_monitor(answer.document)


def _run(answer: Answer) -> Run:
    return documents.read_run(answer.document)


def _nothing(_: Answer) -> None:
    return None


def _page(answer: Answer, *, read: Callable[[Document], Item]) -> Page[Item]:
    return documents.read_page(answer.document, read)


def _occurrences(answer: Answer) -> list[Occurrence]:
    return [documents.read_occurrence(one) for one in answer.document["items"]]


def _explanation(answer: Answer) -> Explanation:
    return documents.read_explanation(answer.document)


# Building


def _path(*parts: str | UUID) -> str:
    """A path in which every id stays one segment, whatever characters it has."""
    for part in parts:
        if str(part) in ("", ".", ".."):
            raise NotFound(f"there is no {parts[0][:-1]} {str(part)!r}")  # type: ignore[index]
    return "".join("/" + quote(str(part), safe="") for part in parts)


def _flags(**given: bool) -> tuple[tuple[str, str], ...]:
    return tuple((name, "true") for name, value in given.items() if value)


def _asked(flag: bool) -> str | None:
    return "true" if flag else None


def _query(**given: Any) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, time_text(value) if isinstance(value, datetime) else str(value))
        for name, value in given.items()
        if value is not None
    )
