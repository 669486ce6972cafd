"""What a handler is told about the run it executes."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from duly.model import make_run_id
from duly.states import RunFlag
from duly.timing import render_key

if TYPE_CHECKING:
    from duly.store.runs import ClaimedRun


class Context:
    """The run as its handler sees it. Values are worked out when asked for: most handlers ask for few of them."""

    __slots__ = ("_cancelled", "_run")

    def __init__(self, run: ClaimedRun) -> None:
        self._run = run
        self._cancelled = False

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
        """The same for all attempts of this occurrence."""
        run = self._run
        return render_key(
            run.policy.idempotency_key_template,
            job_id=run.job_id,
            name=run.name,
            scheduled_at=run.scheduled_at,
            timezone=run.timezone,
        )

    @property
    def fencing_token(self) -> str:
        """Greater for every later claim of the run: hand it downstream, and let downstream refuse a smaller one."""
        return str(self._run.claim_id)

    @property
    def missed(self) -> bool:
        """The occurrence was late beyond the misfire grace and runs on purpose."""
        return bool(self._run.flags & RunFlag.MISSED)

    @property
    def payload_ref(self) -> str | None:
        return self._run.payload_ref

    @property
    def cancelled(self) -> bool:
        """Somebody wants this to stop, or the lease is lost. Threads should look at it between steps."""
        return self._cancelled

    def _cancel(self) -> None:
        self._cancelled = True
