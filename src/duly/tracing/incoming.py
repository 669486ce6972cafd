"""The trace that a submit belongs to: a span of its own where there is an SDK, else the one that the request names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Protocol, Self
from uuid import UUID

from duly.tracing.context import TraceContext
from duly.tracing.spans import tracing

_incoming: ContextVar[TraceContext | None] = ContextVar("duly_incoming_trace", default=None)


@contextmanager
def incoming(headers: Mapping[str, str]) -> Iterator[None]:
    """Submits inside belong to the trace that these headers of a request name, unless a span is current."""
    context = TraceContext.from_headers(headers) if "traceparent" in headers else None
    if context is None:
        yield
        return
    token = _incoming.set(context)
    try:
        yield
    finally:
        _incoming.reset(token)


class Prepared(Protocol):
    """What the span of a submit shows of a job."""

    @property
    def job_id(self) -> UUID: ...

    @property
    def queue(self) -> str: ...


class Submit:
    """One call that submits jobs. `stored`: the context that its jobs keep; None unless it is sampled."""

    __slots__ = ("stored",)

    def __init__(self, stored: str | None) -> None:
        self.stored = stored

    def prepared(self, jobs: Sequence[Prepared]) -> None:
        """The jobs are checked, and about to be stored."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


_UNTRACED = Submit(None)


def submitting(jobs: int) -> Submit:
    """Begin a call that submits this many jobs: `with submitting(1) as trace`."""
    context = _incoming.get()
    if (spans := tracing()) is not None:
        return spans.submit(jobs, context)
    return _UNTRACED if context is None or not context.sampled else Submit(context.to_stored())
