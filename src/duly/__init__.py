"""Duly: a distributed job scheduler for Python on PostgreSQL.

The public names are imported when they are first used: `duly --help`, a `Client` and a child process that runs one
handler need no database driver.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.client import AsyncClient, Client
    from duly.errors import (
        ApiUnavailable,
        ConfigError,
        Conflict,
        CoordinatorUnavailable,
        DulyError,
        Forbidden,
        InvalidInput,
        InvalidSchedule,
        LeaseLost,
        LimitReached,
        MissingExtra,
        NotFound,
        Permanent,
        RetryAfter,
        Snooze,
        StoreMismatch,
        StoreUnavailable,
        Unauthorized,
        UnknownHandler,
    )
    from duly.model import DeadLetter, DeadLetterFilter, Explanation, Job, JobRequest, Page, Run
    from duly.worker.handler.context import Context

_HOMES = {
    "AsyncClient": "duly.client",
    "Client": "duly.client",
    "Context": "duly.worker.handler.context",
    "Duly": "duly.app",
    **dict.fromkeys(
        ("DeadLetter", "DeadLetterFilter", "Explanation", "Job", "JobRequest", "Page", "Run"), "duly.model"
    ),
}

__all__ = [
    "ApiUnavailable",
    "AsyncClient",
    "Client",
    "ConfigError",
    "Conflict",
    "Context",
    "CoordinatorUnavailable",
    "DeadLetter",
    "DeadLetterFilter",
    "Duly",
    "DulyError",
    "Explanation",
    "Forbidden",
    "InvalidInput",
    "InvalidSchedule",
    "Job",
    "JobRequest",
    "LeaseLost",
    "LimitReached",
    "MissingExtra",
    "NotFound",
    "Page",
    "Permanent",
    "RetryAfter",
    "Run",
    "Snooze",
    "StoreMismatch",
    "StoreUnavailable",
    "Unauthorized",
    "UnknownHandler",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'duly' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES.get(name, "duly.errors")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
