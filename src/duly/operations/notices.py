"""What an operator should know about a tenant's jobs, in sentences with the next step. `duly doctor` and the live page
read them here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from duly.model import Unrunnable
from duly.store.declarations import Noted


@dataclass(frozen=True, slots=True)
class Notice:
    """`wrong`: something does not happen that should, or the reverse. Otherwise it is only good to know."""

    kind: Literal["unrunnable", "cancelled", "undeclared"]
    job_id: UUID
    message: str
    next_step: str
    wrong: bool = True


def notices_of(unrunnable: Iterable[Unrunnable]) -> list[Notice]:
    """Of jobs that no live worker can run."""
    return [Notice("unrunnable", one.job_id, one.message, one.next_step) for one in unrunnable]


def declared_but_cancelled(name: str, job_id: UUID) -> Notice:
    """Of a cancelled job that the code declares: for those who ask, and for the worker that declares it."""
    return Notice(
        "cancelled",
        job_id,
        f"job {name!r} is declared by the code but cancelled, so it does not run",
        f"to bring it back: duly job resume {job_id}",
    )


def declared_notices(noted: Iterable[Noted]) -> list[Notice]:
    """Of jobs that the code declares and that do not run, that run although no code declares them, or that are paused
    because none does: in this order."""
    noted = list(noted)
    found = [
        declared_but_cancelled(one.name, one.job_id) for one in noted if one.status == "cancelled" and one.declared
    ]
    undeclared = [one for one in noted if one.undeclared_at is not None and not one.declared]
    found += [
        Notice(
            "undeclared",
            one.job_id,
            f"job {one.name!r} fires, but is no longer declared since deploy {one.deploy}",
            f"to end it: duly job cancel {one.job_id}",
        )
        for one in undeclared
        if one.status == "active"
    ]
    return found + [
        Notice(
            "undeclared",
            one.job_id,
            f"job {one.name!r} is paused: no longer declared since deploy {one.deploy}",
            f"to end it: duly job cancel {one.job_id}; to keep it: duly job resume {one.job_id}",
            wrong=False,
        )
        for one in undeclared
        if one.status == "paused"
    ]
