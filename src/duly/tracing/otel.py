"""Spans, by OpenTelemetry's API and its messaging conventions. Imported only where the application has imported it.

Whether a run is traced is decided before anything is made for it: a one-off is if its submit was, which the claim
tells; an occurrence of a recurring job is if the sampler says so about the id of its trace, which follows from the run.
So all attempts of an occurrence, on all workers, are of one trace, and a sampler that goes by the trace's id decides
the same each time.
"""

from __future__ import annotations

import copy
import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from duly.logs import current_run
from duly.model.claim import Buried, ClaimedRun, Expired, Requeued, Succeeded
from duly.model.ids import make_run_id
from duly.tracing.context import LINKED, FiredRun, TraceContext, lot_of, trace_id_of
from duly.tracing.incoming import Prepared, Submit
from duly.version import VERSION

T = TypeVar("T")
Attributes = dict[str, str | int | float | bool]

SYSTEM = "duly"
# What the SDK keeps of a span by default.
_MAX_LINKS = 128
_SCHEMA = "https://opentelemetry.io/schemas/1.30.0"
_ROOT = Context()
_trace_headers = TraceContextTextMapPropagator()
_baggage_header = W3CBaggagePropagator()
# The trace that the next root span of this tracer begins; None: a random one.
_begun: ContextVar[int | None] = ContextVar("duly_trace_id", default=None)


def find() -> Tracing | bool | None:
    """This process's tracing; None while no provider is set, False if one is set that makes no spans."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        return None
    if isinstance(provider, trace.NoOpTracerProvider):
        return False
    tracer = provider.get_tracer(SYSTEM, VERSION, schema_url=_SCHEMA)
    return False if isinstance(tracer, trace.NoOpTracer) else Tracing(tracer)


def attached(found: TraceContext) -> AbstractContextManager[None]:
    """Another process's span is current inside."""
    return _attached(_remote(found))


@contextmanager
def _attached(context: Context) -> Iterator[None]:
    token = contexts.attach(context)
    try:
        yield
    finally:
        contexts.detach(token)


def inject_current(headers: MutableMapping[str, str]) -> None:
    if trace.get_current_span().get_span_context().is_valid:
        propagate.inject(headers)


class _ChosenIds:
    """The provider's generator of ids, except for the trace of a root span whose id was chosen."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def generate_trace_id(self) -> int:
        chosen = _begun.get()
        return self._generator.generate_trace_id() if chosen is None else chosen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


class Tracing:
    """The spans of one process."""

    def __init__(self, tracer: trace.Tracer) -> None:
        if (generator := getattr(tracer, "id_generator", None)) is not None:
            # The SDK's tracer. Another one cannot be told the id of a trace: there each attempt has a trace of its own.
            tracer = copy.copy(tracer)
            tracer.id_generator = _ChosenIds(generator)  # type: ignore[attr-defined]
        self._tracer = tracer
        self._sampler: Any = getattr(tracer, "sampler", None)
        # Runs with a greater lot are surely not sampled, whatever the rest of their traces' ids.
        self._last_lot = None if self._sampler is None else _last_lot(self._sampler.get_description())

    def unsampled(self) -> None:
        """From here on, in this task, runs are executed that are not traced."""
        contexts.attach(_UNTRACED)

    def around_unsampled(self, work: Callable[[], T]) -> Callable[[], T]:
        return _inside(_UNTRACED, work)

    def submit(self, jobs: int, context: TraceContext | None) -> Submit:
        return _SubmitSpan(self._tracer, jobs, context)

    def claimed(self, runs: int, *, began_ns: int) -> ClaimTrace:
        """A claim that has just been answered."""
        return ClaimTrace(self, runs, began_ns, time.time_ns())

    def fired(self, runs: Iterable[FiredRun], *, began_ns: int) -> None:
        """Occurrences that were fired in one transaction, which has just been answered."""
        ended_ns = 0
        for run in runs:
            begun = self.begin(run.trace, run.job_id, run.scheduled_at, "fire", run.queue)
            if begun is None:
                continue
            ended_ns = ended_ns or time.time_ns()
            attributes = _attributes("create", "fire", run.queue) | {
                "messaging.message.id": make_run_id(run.job_id, run.scheduled_at)
            }
            begun.span(self, f"fire {run.queue}", SpanKind.PRODUCER, attributes, began_ns).end(ended_ns)

    def begin(
        self, stored: str | None, job_id: UUID, scheduled_at: datetime, operation: str, queue: str | None
    ) -> Begun | None:
        """Where the spans of a run belong; None if it is not traced."""
        if stored is None:
            return None
        parent, linked = (None, None) if stored == LINKED else TraceContext.of_run(stored)
        if parent is not None:
            remote = _remote(parent)
            return Begun(remote, None, (Link(trace.get_current_span(remote).get_span_context()),))
        if self._last_lot is not None and lot_of(job_id, scheduled_at) > self._last_lot:
            return None
        trace_id = int(trace_id_of(job_id, scheduled_at), 16)
        if self._sampler is not None:
            asked = _attributes("process", "process", queue or "")
            decided = self._sampler.should_sample(_ROOT, trace_id, f"{operation} {queue}", SpanKind.CONSUMER, asked)
            if not decided.decision.is_sampled():
                return None
        links = () if linked is None else (Link(trace.get_current_span(_remote(linked)).get_span_context()),)
        return Begun(_ROOT, trace_id, links)

    def start(
        self,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        *,
        context: Context | None = None,
        trace_id: int | None = None,
        links: Sequence[Link] = (),
        start_ns: int | None = None,
    ) -> Span:
        token = _begun.set(trace_id)
        try:
            return self._tracer.start_span(
                name, context=context, kind=kind, attributes=attributes, links=links, start_time=start_ns
            )
        finally:
            _begun.reset(token)


@dataclass(frozen=True, slots=True)
class Begun:
    """A trace that goes on in this process: under a parent, or with an id that was chosen."""

    context: Context
    trace_id: int | None
    links: Sequence[Link]

    def span(self, spans: Tracing, name: str, kind: SpanKind, attributes: Attributes, start_ns: int | None) -> Span:
        return spans.start(
            name, kind, attributes, context=self.context, trace_id=self.trace_id, links=self.links, start_ns=start_ns
        )


# Submit


class _SubmitSpan(Submit):
    __slots__ = ("_context", "_jobs", "_span", "_token", "_tracer")

    def __init__(self, tracer: trace.Tracer, jobs: int, context: TraceContext | None) -> None:
        super().__init__(None)
        self._tracer = tracer
        self._jobs = jobs
        self._context = context

    def __enter__(self) -> Self:
        parent = contexts.get_current()
        if self._context is not None and not trace.get_current_span(parent).get_span_context().is_valid:
            parent = _remote(self._context)
        attributes = _attributes("send", "submit", None)
        if self._jobs != 1:
            attributes["messaging.batch.message_count"] = self._jobs
        self._span = self._tracer.start_span("submit", parent, SpanKind.PRODUCER, attributes)
        inside = trace.set_span_in_context(self._span, parent)
        self._token = contexts.attach(inside)
        if self._span.get_span_context().trace_flags.sampled:
            headers: dict[str, str] = {}
            _trace_headers.inject(headers, inside)
            _baggage_header.inject(headers, inside)
            own = TraceContext.from_headers(headers)
            self.stored = None if own is None else own.to_stored()
        return self

    def prepared(self, jobs: Sequence[Prepared]) -> None:
        if not self._span.is_recording():
            return
        queues = {job.queue for job in jobs}
        if len(queues) == 1:
            (queue,) = queues
            self._span.update_name(f"submit {queue}")
            self._span.set_attribute("messaging.destination.name", queue)
        if len(jobs) == 1:
            self._span.set_attribute("duly.job.id", str(jobs[0].job_id))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        contexts.detach(self._token)
        if kind is not None:
            # The class alone: a message may repeat what was submitted.
            self._span.set_attribute("error.type", kind.__name__)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


# Process


class ClaimTrace:
    """A claim, as the traces of its runs show it."""

    __slots__ = ("_began_ns", "_ended_ns", "_runs", "_traced", "spans")

    def __init__(self, spans: Tracing, runs: int, began_ns: int, ended_ns: int) -> None:
        self.spans = spans
        self._runs = runs
        self._began_ns = began_ns
        self._ended_ns = ended_ns
        self._traced: list[tuple[ClaimedRun, Begun]] = []

    def of(self, run: ClaimedRun) -> RunSpan | None:
        """None: the run is not traced."""
        begun = self.spans.begin(run.trace, run.job_id, run.scheduled_at, "process", run.queue)
        if begun is None:
            return None
        self._traced.append((run, begun))
        return RunSpan(self.spans, run, begun)

    def show(self) -> None:
        """The claim's own span, in the trace of its first traced run; it links to the submits of the others. One for
        each run would double what a traced run costs."""
        if not self._traced:
            return
        run, begun = self._traced[0]
        queue = run.queue or ""
        attributes = _attributes("receive", "claim", queue) | {"messaging.batch.message_count": self._runs}
        if self._runs == 1:
            attributes["messaging.message.id"] = make_run_id(run.job_id, run.scheduled_at)
        links = [link for _, other in self._traced[:_MAX_LINKS] for link in other.links]
        self.spans.start(
            f"claim {queue}", SpanKind.CLIENT, attributes, context=begun.context, trace_id=begun.trace_id,
            links=links, start_ns=self._began_ns,
        ).end(self._ended_ns)  # fmt: skip


class _Unsampled(NonRecordingSpan):
    """The one span of all runs that are not traced: spans that their handlers begin are not sampled either. Somebody
    who logs its trace's id finds the run's; few look, so the id is made for them alone."""

    def __init__(self) -> None:
        self._span_id = secrets.randbits(63) + 1

    def get_span_context(self) -> SpanContext:
        run = current_run.get()
        fields = None if run is None else run.log_fields
        trace_id = self._span_id if fields is None else int(fields["trace_id"], 16)
        return SpanContext(trace_id, self._span_id, is_remote=False)


_UNTRACED = trace.set_span_in_context(_Unsampled(), _ROOT)


class RunSpan:
    """The span of one attempt of a traced run, which is current while its handler runs, wherever that is."""

    __slots__ = ("_begun", "_context", "_run", "_span", "_spans", "trace_id")

    def __init__(self, spans: Tracing, run: ClaimedRun, begun: Begun) -> None:
        self._spans = spans
        self._run = run
        self._begun = begun
        self._span: Span | None = None
        chosen = begun.trace_id or trace.get_current_span(begun.context).get_span_context().trace_id
        self.trace_id = f"{chosen:032x}"

    def enter(self) -> Token[Context]:
        """Begin the attempt. Its span is current until `leave`."""
        self._span = self._started()
        self.trace_id = f"{self._span.get_span_context().trace_id:032x}"
        self._context = trace.set_span_in_context(self._span, self._begun.context)
        return contexts.attach(self._context)

    def leave(self, token: Token[Context]) -> None:
        contexts.detach(token)

    def _started(self) -> Span:
        run, queue = self._run, self._run.queue or ""
        attributes = _attributes("process", "process", queue) | {
            "messaging.message.id": make_run_id(run.job_id, run.scheduled_at),
            "duly.job.name": run.name,
            "duly.handler": run.handler,
            "duly.attempt": run.attempt,
        }
        return self._begun.span(self._spans, f"process {queue}", SpanKind.CONSUMER, attributes, None)

    def around(self, work: Callable[[], T]) -> Callable[[], T]:
        """The same work, with this span current in whatever thread it runs."""
        return _inside(self._context, work)

    def headers(self) -> dict[str, str]:
        """What a process that this run calls is told of its trace."""
        return _headers(self._context)

    def request(self, method: str, host: str, port: int, url: str) -> RequestSpan | None:
        """The span of a request to an endpoint; None if the run is not traced."""
        if self._span is None or not self._span.is_recording():
            return None
        attributes: Attributes = {
            "http.request.method": method, "server.address": host, "server.port": port, "url.full": url,
        }  # fmt: skip
        span = self._spans.start(method, SpanKind.CLIENT, attributes, context=self._context)
        return RequestSpan(span, trace.set_span_in_context(span, self._context))

    def end(self, outcome: Succeeded | Requeued | Buried | Expired | None) -> None:
        """The attempt is over. Its error is the one that is stored, in which the job's secrets are masked."""
        span, self._span = self._span, None
        if span is None:
            return
        name, error = _outcome(outcome)
        span.set_attribute("duly.outcome", name)
        if error is not None:
            kind, message = str(error.get("type")), str(error.get("message"))
            event = {"exception.type": kind, "exception.message": message}
            if error.get("traceback"):
                event["exception.stacktrace"] = str(error["traceback"])
            span.add_event("exception", event)
            if name != "cancelled":
                span.set_attribute("error.type", kind)
                span.set_status(Status(StatusCode.ERROR, f"{kind}: {message}"))
        elif outcome is None:
            span.set_status(Status(StatusCode.ERROR, "the lease was lost: another worker runs it"))
        span.end()


class RequestSpan:
    """The span of one HTTP request. It names neither query nor headers: both may hold secrets."""

    def __init__(self, span: Span, context: Context) -> None:
        self._span = span
        self._context = context

    def headers(self) -> dict[str, str]:
        return _headers(self._context)

    def answered(self, status: int) -> None:
        self._span.set_attribute("http.response.status_code", status)
        if status >= 400:
            self._span.set_attribute("error.type", str(status))
            self._span.set_status(Status(StatusCode.ERROR))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._span.set_attribute("error.type", kind.__name__)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


def _outcome(outcome: Succeeded | Requeued | Buried | Expired | None) -> tuple[str, dict[str, Any] | None]:
    """The outcome's name, and its error as it is stored."""
    if outcome is None:
        return "lost", None
    if isinstance(outcome, Succeeded):
        return "succeeded", None
    if isinstance(outcome, Expired):
        return "missed", None
    name = outcome.status if isinstance(outcome, Buried) else outcome.state
    return name, None if outcome.error is None else json.loads(outcome.error)


# Contexts and attributes

_RATIO = re.compile(r"(?:ParentBased\{root:)?(?:TraceIdRatioBased\{([0-9.e+-]+)\}|(AlwaysOffSampler))")


def _last_lot(description: str) -> int | None:
    """The greatest lot that a sampler samples, by its description; None: any, or it goes by something else."""
    found = _RATIO.match(description)
    if found is None:
        return None
    return -1 if found[2] else int(float(found[1]) * 2**32)


def _inside(context: Context, work: Callable[[], T]) -> Callable[[], T]:
    def inside() -> T:
        token = contexts.attach(context)
        try:
            return work()
        finally:
            contexts.detach(token)

    return inside


def _remote(found: TraceContext) -> Context:
    """A context of OpenTelemetry in which another process's span is current."""
    state = TraceState.from_header([found.tracestate]) if found.tracestate else None
    span = SpanContext(
        int(found.trace_id, 16), int(found.span_id, 16), True, TraceFlags(int(found.flags, 16)), state
    )  # fmt: skip
    context = trace.set_span_in_context(NonRecordingSpan(span), _ROOT)
    return _baggage_header.extract({"baggage": found.baggage}, context) if found.baggage else context


def _headers(context: Context) -> dict[str, str]:
    headers: dict[str, str] = {}
    _trace_headers.inject(headers, context)
    # What the application has configured (OTEL_PROPAGATORS), which may be other headers as well.
    propagate.inject(headers, context)
    return headers


@lru_cache(maxsize=1024)
def _common(kind: str, name: str, queue: str | None) -> Attributes:
    attributes: Attributes = {
        "messaging.system": SYSTEM, "messaging.operation.type": kind, "messaging.operation.name": name,
    }  # fmt: skip
    return attributes if queue is None else attributes | {"messaging.destination.name": queue}


def _attributes(kind: str, name: str, queue: str | None) -> Attributes:
    return dict(_common(kind, name, queue))
