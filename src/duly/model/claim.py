"""Runs in a worker's hands (`Claim`, `ClaimedRun`) and the outcomes that it records: one value per way to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from duly.errors import InvalidInput
from duly.model.policy import DEFAULT_POLICY, Policy, policy_from_stored


class ClaimedRun:
    """One run in a worker's hands. Created for every run of a claim, so it has slots and no generated methods."""

    __slots__ = (
        "attempt", "claim_id", "flags", "handler", "job_id", "name", "ordinal", "payload", "payload_ref",
        "policy_text", "queue", "scheduled_at", "target", "tenant", "timezone", "trace",
    )  # fmt: skip

    claim_id: UUID
    ordinal: int
    job_id: UUID
    scheduled_at: datetime
    attempt: int
    flags: int
    name: str
    handler: str
    target: str | None
    payload: str
    payload_ref: str | None
    timezone: str
    policy_text: str | None
    tenant: str | None
    """The job's tenant if its handler is an endpoint or a command; None for a task, which is not told."""
    trace: str | None
    """The context that `duly.tracing` reads; None: a one-off whose submit was not traced."""
    queue: str | None
    """The job's queue, for the names of spans; None where `trace` is."""

    @property
    def policy(self) -> Policy:
        """The job's policy; the default if the stored one cannot be read, which is about to end the run."""
        try:
            return policy_from_stored(self.policy_text)
        except InvalidInput:
            return DEFAULT_POLICY


@dataclass(frozen=True, slots=True)
class Claim:
    """The runs that one claim statement took. `next_run_at`: when the next run waiting in these lanes may start."""

    claim_id: UUID | None
    runs: list[ClaimedRun]
    next_run_at: datetime | None
    #: The first `emptied_lanes` lanes hold no more runs that could have started at `emptied_to`.
    emptied_lanes: int
    emptied_to: datetime
    #: The database's time when it found these runs due.
    now: datetime
    #: Seconds that the database worked on the claim, without the network.
    took: float = 0.0
    #: The position at which a claim for some tenants stopped looking in each lane; None: at a run not due yet.
    ends: Sequence[datetime | None] = ()


# Not frozen, unlike all other values: freezing doubles the cost of creating one, and every run creates one.
@dataclass(slots=True)
class Succeeded:
    """The handler returned, or its idempotency key had been completed before."""

    run: ClaimedRun
    started_us: int
    finished_us: int
    result: str | None = None
    flags: int = 0
    key: str | None = None
    """An idempotency key of the job's own, to be remembered in the ledger."""


@dataclass(slots=True)
class Recorded(Succeeded):
    """The run succeeded, and the handler's own transaction has already recorded it."""


@dataclass(frozen=True, slots=True)
class Requeued:
    """The run goes back to the queue: `retrying` after a failed attempt, `queued` after a snooze or a return."""

    run: ClaimedRun
    state: str
    delay: float
    started_us: int | None
    finished_us: int | None
    error: str | None = None
    refund: int = 0
    flags: int = 0
    """Flags to add to the run."""


@dataclass(frozen=True, slots=True)
class Buried:
    """The run gets no more attempts: `dead`, or `cancelled` if a user cancelled it."""

    run: ClaimedRun
    started_us: int | None
    finished_us: int
    error: str
    status: str = "dead"


@dataclass(frozen=True, slots=True)
class Expired:
    """No worker started the run in time, as its job's `start_within_seconds` demands: it ends as `missed`."""

    run: ClaimedRun
    finished_us: int
    start_within_seconds: int

    @property
    def started_us(self) -> None:
        return None

    @property
    def error(self) -> None:
        return None
