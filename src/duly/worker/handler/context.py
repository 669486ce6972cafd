"""`ctx`: the part of an execution that its handler may see, and the calls that the handler may make."""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import TYPE_CHECKING

from duly.model import make_run_id
from duly.states import RunFlag

if TYPE_CHECKING:
    from duly.store.pool import Connection
    from duly.worker.execution import Execution, Host


_LOG = logging.getLogger("duly.run")


class Context:
    """The run as its handler sees it. Values are computed on access, because most handlers read few of them."""

    __slots__ = ("_execution",)

    def __init__(self, execution: Execution) -> None:
        self._execution = execution

    @property
    def job_id(self) -> str:
        return str(self._execution.run.job_id)

    @property
    def run_id(self) -> str:
        run = self._execution.run
        return make_run_id(run.job_id, run.scheduled_at)

    @property
    def job_name(self) -> str:
        return self._execution.run.name

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return self._execution.run.attempt

    @property
    def scheduled_at(self) -> datetime:
        """When the occurrence was due, in UTC."""
        return self._execution.run.scheduled_at

    @property
    def idempotency_key(self) -> str:
        """The same for all attempts and redrives of this occurrence."""
        return self._execution.idempotency_key

    @property
    def fencing_token(self) -> str:
        """Greater for every later claim of the run: pass it downstream, and let downstream refuse a smaller one."""
        return str(self._execution.run.claim_id)

    @property
    def missed(self) -> bool:
        """The occurrence was later than the misfire grace and runs because its policy says so."""
        return bool(self._execution.run.flags & RunFlag.MISSED)

    @property
    def trace_id(self) -> str:
        """32 hex digits, the same for all attempts of this occurrence: `traceparent` and log lines carry it."""
        return self._execution.trace_id

    @property
    def payload_ref(self) -> str | None:
        return self._execution.run.payload_ref

    @property
    def cancelled(self) -> bool:
        """The run was told to stop, or its lease is lost. A handler in a thread should check it between steps."""
        return self._execution.stop is not None

    def transaction(self) -> AbstractAsyncContextManager[Connection]:
        """`async with ctx.transaction() as conn:` commits the handler's writes and the run's success together.

        `conn` is an asyncpg connection to Duly's own database. When the block ends, the run is completed in the same
        transaction; if the lease is lost by then, both roll back and `LeaseLost` is raised. Once per run.
        """
        return self._host("ctx.transaction()").transaction(self._execution)

    def progress(self, fraction: float, note: str = "") -> None:
        """Report progress from 0 to 1. Cheap: the latest report of each run is written, at most twice a second."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be 0 to 1, not {fraction!r}")
        execution = self._execution
        if execution.mask is not None:
            note = execution.mask.text(str(note))
        self._host("ctx.progress()").progress(execution.run, fraction, note)

    @property
    def log(self) -> logging.Logger:
        """A logger: its records name the run, as those of every logger do while the handler runs."""
        return _LOG

    def _host(self, call: str) -> Host:
        if self._execution.host is None:
            raise RuntimeError(f"{call} needs a worker with a connection to the store")
        return self._execution.host
