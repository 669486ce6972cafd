"""Duly: a distributed job scheduler for Python on PostgreSQL."""

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
