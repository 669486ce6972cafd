"""Every call of the REST API: the request it is, and how its answer is read. No I/O.

The functions below are the clients' methods: `clients` sends what they build. A `Call` is built once, so each try of it
is the same request to the byte; a function that needs several calls is a generator that yields them one by one.

Which calls are `repeatable` is decided here. Those that only look are. So are `pause`, `resume`, `cancel` and `change`:
the second time they find what they wanted. A submit is, because it carries a key: see `submit`. `trigger`, `redrive`,
`cancel_run` and `purge` are not: they are tried again only when they surely did not arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, Unpack
from urllib.parse import quote
from uuid import UUID, uuid4

from duly.client import documents
from duly.client.documents import Document, encode, job_body, plain
from duly.client.trying import refusal
from duly.errors import DulyError, InvalidInput, NotFound
from duly.formats import time_text
from duly.model import (
    JOB_RULES,
    POLICY_FIELDS,
    Cluster,
    Counts,
    DeadLetter,
    DeadLetterFilter,
    DstFold,
    DstGap,
    Explanation,
    Forecast,
    Job,
    JobChanges,
    JobOptions,
    JobRequest,
    JobStatus,
    Occurrence,
    Page,
    Policy,
    Preview,
    Run,
    Swept,
    each_request,
)

PREFIX = "/api/v1"
#: The API's own limits for one batch.
BATCH_JOBS = 10_000
BATCH_BYTES = 8 * 1024 * 1024
PAGE = 200

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer: its JSON document (None where it has no body) and the headers that matter."""

    status: int
    document: Any
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request."""

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
    """One call, or a generator of several, that comes to a result."""

    def __iter__(self) -> Generator[Call[Any], Any, T_co]: ...


@dataclass(frozen=True, slots=True)
class Pages(Generic[Item]):
    """A list that comes in pages: the call for the one at a cursor."""

    at: Callable[[str | None], Call[Page[Item]]]


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """`created` is False when a dedupe_key of the caller's own named an existing job with the same content."""

    job: Job
    created: bool


@dataclass(frozen=True, slots=True)
class BatchItem:
    """What became of one job of a batch: its id, or the error that `submit` would have raised."""

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
    """What `submit` would send, for `submit_many`."""
    if run_at is not None and schedule is not None:
        raise InvalidInput("run_at", "cannot be given together with schedule")
    policy = {name: value for name, value in options.items() if name in POLICY_FIELDS}
    others: dict[str, Any] = {name: value for name, value in options.items() if name not in POLICY_FIELDS}
    if unknown := others.keys() - JOB_RULES.keys():
        raise InvalidInput(min(unknown), "is not a field of a job")
    return JobRequest(
        handler=handler,
        payload={} if payload is None else payload,
        schedule=run_at if run_at is not None else schedule,
        policy=Policy(**policy),  # type: ignore[arg-type]
        **others,
    )


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
    """Register a job. Without `run_at` or `schedule` it runs now.

    An answer can be lost after the job was stored. So that sending it again is safe, a submit without a `dedupe_key`
    gets one that the client makes (`client:` and a random part). It is stored with the job, as if you had given it:
    you see it in the job, and nothing else comes of it. With `idempotent=False` none is made, and a submit whose fate
    is unknown raises `ApiUnavailable` instead of being sent again.

    A task that no worker has is refused, as it may be misspelt, unless you allow it.
    """
    request = request_of(handler, payload, schedule=schedule, run_at=run_at, **options)
    submitted = yield submit_request(request, idempotent=idempotent, allow_unknown_handler=allow_unknown_handler)
    job: Job = submitted.job
    return job


def submit_request(
    request: JobRequest, *, idempotent: bool = True, allow_unknown_handler: bool = False
) -> Call[SubmittedJob]:
    """`submit` for a request that is there already; also says whether the job is new."""
    own_key = request.dedupe_key is None and idempotent
    request = _keyed(request) if own_key else request

    def read(answer: Answer) -> SubmittedJob:
        # Under a key that nobody else has, what is there already is what an earlier try of this very call made.
        return SubmittedJob(_job(answer), own_key or answer.status == 201)

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
    """Register many jobs, up to 10,000 per call of the API. What became of each, in order.

    Each is made with `request_of`, or a mapping of what that takes: `{"handler": "send", "payload": {…}}`.
    With `atomic` all are stored or, with an error, none; they must then fit into one call. Keys as in `submit`.
    """
    given = each_request(requests, lambda handler, fields: request_of(handler, **fields))
    own_keys = [idempotent and request.dedupe_key is None for request in given]
    sent = [_keyed(request) if own else request for request, own in zip(given, own_keys, strict=True)]
    bodies = [encode(job_body(request)) for request in sent]
    chunks = list(_chunks(bodies))
    if atomic and len(chunks) > 1:
        raise InvalidInput("jobs", f"with atomic must be at most {BATCH_JOBS}, and {BATCH_BYTES} bytes")
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
        if index > start and (index - start >= BATCH_JOBS or size + len(body) + 2 > BATCH_BYTES):
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
    """One page of jobs, newest first. It may have fewer than `limit` and not be the last: `next_cursor` says so.

    Without `payload` they are not sent, and are None.
    """
    query = _query(status=status, queue=queue, name=name, cursor=cursor, limit=limit, payload=_asked(payload))
    for key, value in (label or {}).items():
        if "=" in key:
            raise InvalidInput("label", f"{key[:63]!r} has an equals sign: the API cannot be asked for that name")
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
    """Every job that matches, newest first; pages are fetched as they are needed. Without `payload` they are not sent,
    and are None."""
    return Pages(
        lambda cursor: jobs_page(
            status=status, queue=queue, name=name, label=label, cursor=cursor, limit=PAGE, payload=payload
        )
    )


def get_job(job_id: str | UUID) -> Call[Job]:
    """One job, by its id."""
    return Call("GET", _path("jobs", job_id), _job)


def change(job_id: str | UUID, *, expected_version: int | None = None, **changes: Unpack[JobChanges]) -> Call[Job]:
    """Set these fields of a job. A changed schedule is planned anew.

    With `expected_version` (a job's `version`, as `get_job` gave it) a job that was changed since is a `Conflict`.
    """
    headers = {} if expected_version is None else {"If-Match": f'"{expected_version}"'}
    # Tried again after it was done, the version would be another one and the answer a conflict with oneself.
    return Call(
        "PATCH",
        _path("jobs", job_id),
        _job,
        body=encode(plain(changes)),
        headers=headers,
        repeatable=expected_version is None,
    )


def cancel(job_id: str | UUID, *, running: bool = False) -> Call[Job]:
    """No more fires, waiting runs cancelled; with `running` those under way are told to stop as well."""
    return Call("DELETE", _path("jobs", job_id), _job, (("running", "cancel"),) if running else ())


def pause(job_id: str | UUID, *, reason: str | None = None) -> Call[Job]:
    """No more fires until resumed."""
    body = None if reason is None else encode({"reason": reason})
    return Call("POST", _path("jobs", job_id, "pause"), _job, body=body)


def resume(job_id: str | UUID) -> Call[Job]:
    """From the next future occurrence on; what fell into the pause is not made up for."""
    return Call("POST", _path("jobs", job_id, "resume"), _job)


def trigger(job_id: str | UUID) -> Call[Run]:
    """One extra run now; the schedule does not move."""
    return Call("POST", _path("jobs", job_id, "trigger"), _run, repeatable=False)


def upcoming(job_id: str | UUID, *, count: int = 10) -> Call[list[Occurrence]]:
    """The next occurrences of a job, as they are planned now."""
    return Call("GET", _path("jobs", job_id, "upcoming"), _occurrences, _query(count=count))


def explain(job_id: str | UUID, *, at: datetime | None = None) -> Call[Explanation]:
    """What became of the occurrence at this time, or of the last one, and why."""
    return Call("GET", _path("jobs", job_id, "explain"), _explanation, _query(at=at))


def explanations_page(
    job_id: str | UUID, *, start: datetime, end: datetime | None = None, cursor: str | None = None, limit: int = 100
) -> Call[Page[Explanation]]:
    """One page of what became of every occurrence from `start` to `end` (or now), oldest first."""
    query = _query(**{"from": start}, to=end, cursor=cursor, limit=limit)
    return Call("GET", _path("jobs", job_id, "explain"), partial(_page, read=documents.read_explanation), query)


def explanations(job_id: str | UUID, *, start: datetime, end: datetime | None = None) -> Pages[Explanation]:
    """What became of every occurrence from `start` to `end` (or now), oldest first; pages are fetched as needed."""
    return Pages(lambda cursor: explanations_page(job_id, start=start, end=end, cursor=cursor, limit=PAGE))


# Runs


def runs_page(job_id: str | UUID, *, cursor: str | None = None, limit: int = 100) -> Call[Page[Run]]:
    """One page of a job's runs, live and ended, newest first."""
    query = _query(cursor=cursor, limit=limit)
    return Call("GET", _path("jobs", job_id, "runs"), partial(_page, read=documents.read_run), query)


def runs(job_id: str | UUID) -> Pages[Run]:
    """Every run of a job, newest first; pages are fetched as they are needed."""
    return Pages(lambda cursor: runs_page(job_id, cursor=cursor, limit=PAGE))


def get_run(run_id: str) -> Call[Run]:
    """One run with its attempts."""
    return Call("GET", _path("runs", run_id), _run)


def cancel_run(run_id: str) -> Call[Run]:
    """A run that waits ends at once; one that is running is told to stop."""
    return Call("POST", _path("runs", run_id, "cancel"), _run, repeatable=False)


# Dead letters

_EVERYTHING = DeadLetterFilter()


def dead_letters_page(
    wanted: DeadLetterFilter = _EVERYTHING, *, cursor: str | None = None, limit: int = 100, payload: bool = True
) -> Call[Page[DeadLetter]]:
    """One page of dead letters, newest first. It may have fewer than `limit` and not be the last: see `next_cursor`.

    Without `payload` they are not sent, and are None.
    """
    query = _query(**_filter(wanted), cursor=cursor, limit=limit, payload=_asked(payload))
    return Call("GET", "/dead-letters", partial(_page, read=documents.read_dead_letter), query)


def dead_letters(wanted: DeadLetterFilter = _EVERYTHING) -> Pages[DeadLetter]:
    """Every dead letter that matches, newest first, with its payload; pages are fetched as they are needed."""
    return Pages(lambda cursor: dead_letters_page(wanted, cursor=cursor, limit=PAGE))


def get_dead_letter(run_id: str) -> Call[DeadLetter]:
    """One dead letter, whole."""
    return Call("GET", _path("dead-letters", run_id), lambda answer: documents.read_dead_letter(answer.document))


def redrive(run_id: str) -> Call[Run]:
    """Send one again: its attempts start anew, its idempotency key stays. Returns the run, live again."""
    return Call("POST", _path("dead-letters", run_id, "redrive"), _run, repeatable=False)


def redrive_all(wanted: DeadLetterFilter = _EVERYTHING) -> Generator[Call[Any], Any, Swept]:
    """Send all that match again. Only those that are dead now: one that dies again meanwhile is not sent twice."""
    dead_now: DeadLetterFilter | None = yield from those_now(wanted)
    done = refused = 0
    more = dead_now is not None
    while more and dead_now is not None:
        part: tuple[Swept, bool] = yield redrive_some(dead_now)
        swept, more = part
        done += swept.done
        refused = swept.refused  # they stay, so each call meets them all again
    return Swept(done, refused)


def those_now(wanted: DeadLetterFilter = _EVERYTHING) -> Generator[Call[Any], Any, DeadLetterFilter | None]:
    """A filter for what matches at this moment and nothing that dies later, by no clock; None if there is nothing."""
    cursor = None
    while True:
        page: Page[DeadLetter] = yield dead_letters_page(wanted, cursor=cursor, limit=1, payload=False)
        if page.items:
            break
        if (cursor := page.next_cursor) is None:
            return None
    after_newest = page.items[0].buried_at + timedelta(microseconds=1)
    return replace(wanted, until=after_newest if wanted.until is None else min(wanted.until, after_newest))


def redrive_some(wanted: DeadLetterFilter) -> Call[tuple[Swept, bool]]:
    """One call of the API's redrive: what it did, and whether there is more to do. A filter must say which."""

    def read(answer: Answer) -> tuple[Swept, bool]:
        document = answer.document
        return Swept(document["redriven"], document["refused"]), document["more"]

    body = encode(plain({name: value for name, value in _filter(wanted).items() if value is not None}))
    return Call("POST", "/dead-letters/redrive", read, body=body, repeatable=False)


def purge(run_id: str) -> Call[None]:
    """Forget one dead letter for good."""
    return Call("DELETE", _path("dead-letters", run_id), _nothing, repeatable=False)


def purge_all(wanted: DeadLetterFilter = _EVERYTHING) -> Generator[Call[Any], Any, Swept]:
    """Forget all that match for good. Only those that are dead now, not what dies meanwhile."""
    dead_now: DeadLetterFilter | None = yield from those_now(wanted)
    done = 0
    more = dead_now is not None
    while more and dead_now is not None:
        part: tuple[Swept, bool] = yield purge_some(dead_now)
        swept, more = part
        done += swept.done
    return Swept(done, 0)


def purge_some(wanted: DeadLetterFilter) -> Call[tuple[Swept, bool]]:
    """One call of the API's purge by filter: what it did, and whether there is more to do. A filter must say which."""

    def read(answer: Answer) -> tuple[Swept, bool]:
        return Swept(answer.document["purged"], 0), answer.document["more"]

    return Call("DELETE", "/dead-letters", read, _query(**_filter(wanted)), repeatable=False)


def _filter(wanted: DeadLetterFilter) -> dict[str, Any]:
    return {name: getattr(wanted, name) for name in DeadLetterFilter.__dataclass_fields__}


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
    """When a schedule occurs, without saving anything."""
    body: dict[str, Any] = {
        "schedule": schedule, "timezone": timezone, "dst_gap": dst_gap, "dst_fold": dst_fold, "start_at": start_at,
        "end_at": end_at, "after": after, "count": count,
    }  # fmt: skip
    given = plain({name: value for name, value in body.items() if value is not None})
    return Call(
        "POST", "/schedules/preview", lambda answer: documents.read_preview(answer.document), body=encode(given)
    )


def forecast(*, minutes: int = 60) -> Call[Forecast]:
    """How many fires are coming, by minute, queue and handler."""
    return Call("GET", "/forecast", lambda answer: documents.read_forecast(answer.document), _query(minutes=minutes))


def cluster() -> Call[Cluster]:
    """Schedulers, workers, and who leads which shard."""
    return Call("GET", "/cluster", lambda answer: documents.read_cluster(answer.document))


def stats() -> Call[Counts]:
    """Counters for people: of the whole store for an admin's key, else of its tenant."""
    return Call("GET", "/stats", lambda answer: documents.read_counts(answer.document))


# Reading


def _job(answer: Answer) -> Job:
    return documents.read_job(answer.document)


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
    """Whatever an id holds, it stays one part of the path."""
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
