"""What a handler is told about the run it executes, and what it can ask for."""

from __future__ import annotations

import hashlib
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from duly.model import make_run_id
from duly.states import RunFlag
from duly.timing import render_key

if TYPE_CHECKING:
    from duly.masking import Mask
    from duly.store.pool import Connection
    from duly.store.runs import ClaimedRun


class NotHeld(Exception):
    """The lease is over, and the handler has not begun: it is not begun."""


class Host(Protocol):
    """What the worker does for its handlers."""

    def transaction(self, context: Context) -> AbstractAsyncContextManager[Connection]: ...

    def progress(self, run: ClaimedRun, fraction: float, note: str) -> None: ...

    def holds(self, run: ClaimedRun) -> bool:
        """Whether the run is still this worker's."""
        ...


class Context:
    """The run as its handler sees it. Values are worked out when asked for: most handlers ask for few of them."""

    __slots__ = ("_cancelled", "_host", "_mask", "_recorded", "_run", "_started_us")

    def __init__(self, run: ClaimedRun, host: Host | None = None, started_us: int = 0) -> None:
        self._run = run
        self._host = host
        self._started_us = started_us
        self._cancelled = False
        # The run was completed in a transaction of the handler's own.
        self._recorded = False
        # Of what must not be seen in what the run leaves behind.
        self._mask: Mask | None = None

    @property
    def job_id(self) -> str:
        return str(self._run.job_id)

    @property
    def run_id(self) -> str:
        return make_run_id(self._run.job_id, self._run.scheduled_at)

    @property
    def job_name(self) -> str:
        return self._run.name

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self._run.attempt

    @property
    def scheduled_at(self) -> datetime:
        """When the occurrence was due, in UTC."""
        return self._run.scheduled_at

    @property
    def idempotency_key(self) -> str:
        """The same for all attempts and redrives of this occurrence."""
        return key_of(self._run)

    @property
    def fencing_token(self) -> str:
        """Greater for every later claim of the run: hand it downstream, and let downstream refuse a smaller one."""
        return str(self._run.claim_id)

    @property
    def missed(self) -> bool:
        """The occurrence was late beyond the misfire grace and runs on purpose."""
        return bool(self._run.flags & RunFlag.MISSED)

    @property
    def trace_id(self) -> str:
        """32 hex digits, the same for all attempts of this occurrence: what `traceparent` and log lines carry."""
        return hashlib.blake2b(self.run_id.encode(), digest_size=16).hexdigest()

    @property
    def payload_ref(self) -> str | None:
        return self._run.payload_ref

    @property
    def cancelled(self) -> bool:
        """Somebody wants this to stop, or the lease is lost. Threads should look at it between steps."""
        return self._cancelled

    def transaction(self) -> AbstractAsyncContextManager[Connection]:
        """`async with ctx.transaction() as conn:` writes of the handler and the run's success, in one commit.

        `conn` is an asyncpg connection to Duly's own database. When the block ends, the run is completed in the same
        transaction; if the lease is lost by then, both roll back and `LeaseLost` is raised. Once per run.
        """
        return self._served_by("ctx.transaction()").transaction(self)

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how far this is, from 0 to 1. Cheap: what is said last is shown within a second, the rest is not."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be 0 to 1, not {fraction!r}")
        if self._mask is not None:
            note = self._mask.text(str(note))
        self._served_by("ctx.progress()").progress(self._run, fraction, note)

    def _must_be_held(self) -> None:
        """Asked last before anything of the handler's happens, and again after whatever was waited for until then."""
        if self._host is not None and not self._host.holds(self._run):
            raise NotHeld

    def _served_by(self, what: str) -> Host:
        if self._host is None:
            raise RuntimeError(f"{what} can be had only in a worker with a connection to the store")
        return self._host

    def _cancel(self) -> None:
        self._cancelled = True


def key_of(run: ClaimedRun) -> str:
    """The run's idempotency key."""
    return render_key(
        run.policy.idempotency_key_template,
        job_id=run.job_id,
        name=run.name,
        scheduled_at=run.scheduled_at,
        timezone=run.timezone,
    )
