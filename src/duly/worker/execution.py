"""One attempt of a run on this worker: the state that executor, targets, children and `ctx` share about it.

Handlers never see it. They get a `Context` (`handler/context.py`), which offers the part of it that is theirs.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from duly.timing import render_key
from duly.tracing import TraceContext, trace_id_of

if TYPE_CHECKING:
    from duly.masking import Mask
    from duly.model import ClaimedRun
    from duly.store.pool import Connection
    from duly.tracing.otel import RunSpan

NO_DEADLINE = float("inf")


class NotHeld(Exception):
    """The lease ended before the handler was called, so the handler is not called."""


class TooLate(Exception):
    """The job's `start_within_seconds` were over before the handler was called, so the handler is not called."""


class StopReason(Enum):
    """Why a running handler was told to stop."""

    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    LEASE_LOST = "lease lost"
    SHUTDOWN = "shutdown"


class Host(Protocol):
    """The worker, as its handlers use it through their context."""

    #: Its name, and the number of the store's shards, for log records; None: not known.
    node: str | None
    shards: int | None

    def transaction(self, execution: Execution) -> AbstractAsyncContextManager[Connection]: ...

    def progress(self, run: ClaimedRun, fraction: float, note: str) -> None: ...

    def logged(self, execution: Execution, level: str, source: str, text: str) -> None: ...

    def printed(self, execution: Execution, stream: str, text: str) -> None: ...

    def log_ended(self, execution: Execution) -> None:
        """Called if the run has said anything."""
        ...

    def holds(self, run: ClaimedRun) -> bool:
        """Whether this worker still holds the run's lease."""
        ...


class Execution:
    """A run being executed. Made for every run, hence the slots and the few methods."""

    __slots__ = (
        "_fields", "abandoned", "announce", "begun", "deadline", "host", "is_late", "ledger_key", "log", "mask",
        "over", "recorded", "run", "span", "started_us", "stop", "task",
    )  # fmt: skip

    def __init__(self, run: ClaimedRun, host: Host | None = None) -> None:
        self.run = run
        self.host = host
        #: When the attempt began, None before. A sync handler begins once it has its thread.
        self.started_us: int | None = None
        #: The event loop's time at which the attempt times out.
        self.deadline = NO_DEADLINE
        #: The handler has been called, or is called now: from here on the run does not expire, whatever becomes of it.
        self.begun = False
        #: Called when the handler is about to be, if somebody wants to hear of it.
        self.announce: Callable[[], None] | None = None
        self.stop: StopReason | None = None
        #: The handler ignored its stop. The run has been reported; the handler's own end no longer counts.
        self.abandoned = False
        #: The handler's own transaction (`ctx.transaction()`) has recorded the success.
        self.recorded = False
        #: Whether it is too late to start the run. None: it may start at any time.
        self.is_late: Callable[[], bool] | None = None
        #: The idempotency key, if the job has a template of its own. History's primary key covers the default key.
        self.ledger_key: str | None = None
        #: Hides the job's secrets in results, errors, outputs and progress notes.
        self.mask: Mask | None = None
        self.task: asyncio.Task[None] | None = None
        #: The attempt's span. None: this process makes none.
        self.span: RunSpan | None = None
        #: The run has been reported: what its handler left behind no longer speaks for it.
        self.over = False
        #: Its lines, for the one who keeps them (`worker/run_logs.py`); None: it has said nothing.
        self.log: Any = None
        self._fields: dict[str, Any] | None = None

    # An execution is a `LoggedRun`: log records and output find it by `duly.logs.current_run`.

    @property
    def log_fields(self) -> Mapping[str, Any] | None:
        if self._fields is None:
            self._fields = _fields_of(self)
        return None if self.over else self._fields

    def known_by(self, fields: dict[str, Any]) -> None:
        """Sets the fields of log records, in a child process: its worker knows them all."""
        self._fields = fields

    def logged(self, level: str, source: str, text: str) -> None:
        if self.host is not None and not self.over:
            self.host.logged(self, level, source, text)

    def printed(self, stream: str, text: str) -> None:
        if self.host is not None and not self.over:
            self.host.printed(self, stream, text)

    def without_secrets(self, text: str) -> str | None:
        return None if self.mask is None else self.mask.text(text)

    @property
    def idempotency_key(self) -> str:
        run = self.run
        return render_key(
            run.policy.idempotency_key_template,
            job_id=run.job_id,
            name=run.name,
            scheduled_at=run.scheduled_at,
            timezone=run.timezone,
        )

    @property
    def trace_id(self) -> str:
        """The id of the trace that the run belongs to, whether or not anything records it."""
        if self.span is not None:
            return self.span.trace_id
        parent, _ = TraceContext.of_run(self.run.trace)
        return trace_id_of(self.run.job_id, self.run.scheduled_at) if parent is None else parent.trace_id

    @property
    def trace_headers(self) -> dict[str, str]:
        """What is told to an endpoint or a program that the run calls.

        Without a span here, the submitter's context is passed on as it came. Without that one, nobody records the
        trace: the header says so, and has the id for those who log it.
        """
        if self.span is not None:
            return self.span.headers()
        parent, _ = TraceContext.of_run(self.run.trace)
        if parent is not None:
            return parent.headers
        return {"traceparent": f"00-{self.trace_id}-{secrets.token_hex(8)}-00"}

    def ensure_startable(self) -> None:
        """Raises `NotHeld` if the lease has ended, `TooLate` if the run has expired. Called again after any wait."""
        if self.host is not None and not self.host.holds(self.run):
            raise NotHeld
        if self.is_late is not None and self.is_late():
            raise TooLate

    def begin(self) -> None:
        """Called right before the handler is. Raises as `ensure_startable`."""
        self.ensure_startable()
        self.mark_begun()

    def mark_begun(self) -> None:
        self.begun = True
        if self.announce is not None:
            self.announce()


def _fields_of(execution: Execution) -> dict[str, Any]:
    from duly.store.ids import shard_of  # here, because a child process imports no database driver
    from duly.worker.handler.context import Context

    context, host = Context(execution), execution.host
    shards = None if host is None else host.shards
    return {
        "job_id": context.job_id,
        "job": context.job_name,
        "run_id": context.run_id,
        "attempt": context.attempt,
        "shard": None if shards is None else shard_of(execution.run.job_id, shards),
        "node": None if host is None else host.node,
        "trace_id": context.trace_id,
    }
