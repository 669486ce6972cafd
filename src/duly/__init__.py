"""Duly: a distributed job scheduler for Python on PostgreSQL.

The public names are imported when they are first used: `duly --help` should not have to load a database driver.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.errors import (
        ConfigError,
        Conflict,
        DulyError,
        InvalidInput,
        InvalidSchedule,
        LeaseLost,
        NotFound,
        Permanent,
        RetryAfter,
        Snooze,
        StoreMismatch,
        StoreUnavailable,
        UnknownHandler,
    )
    from duly.model import JobRequest
    from duly.worker.context import Context

_HOMES = {"Duly": "duly.app", "Context": "duly.worker.context", "JobRequest": "duly.model"}

__all__ = [
    "ConfigError",
    "Conflict",
    "Context",
    "Duly",
    "DulyError",
    "InvalidInput",
    "InvalidSchedule",
    "JobRequest",
    "LeaseLost",
    "NotFound",
    "Permanent",
    "RetryAfter",
    "Snooze",
    "StoreMismatch",
    "StoreUnavailable",
    "UnknownHandler",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'duly' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES.get(name, "duly.errors")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
