"""The keywords of `submit`, `task`, `cron` and `change`, for type checkers.

`tests/test_recipes.py` compares them with the dataclasses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from duly.model.policy import DstFold, DstGap, MissedWindow, Overlap, RetryBackoff


class AlertOptions(TypedDict, total=False):
    """The fields of `alerts`."""

    late_seconds: int | None
    overrun_seconds: int | None
    not_finished_by: str | None
    failures_in_row: int | None
    no_success_for: int | None


class PolicyOptions(TypedDict, total=False):
    """The fields of a policy, as `app.task` takes them."""

    missed_window: MissedWindow
    catch_up_window_seconds: int | None
    max_missed: int
    overlap: Overlap
    max_queued: int
    max_retries: int
    retry_backoff: RetryBackoff
    retry_delay_seconds: float
    retry_max_delay_seconds: float
    timeout_seconds: float
    start_within_seconds: int | None
    jitter_seconds: int
    dst_gap: DstGap
    dst_fold: DstFold
    idempotency_key_template: str
    ping_url: str | None
    secret_fields: Sequence[str]
    alerts: AlertOptions | None


class CronOptions(PolicyOptions, total=False):
    """The fields of a job that `app.cron` takes beside its own keywords."""

    payload_ref: str | None
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    labels: Mapping[str, str]


class _OwnOptions(CronOptions, total=False):
    timezone: str
    queue: str
    priority: int


class JobOptions(_OwnOptions, total=False):
    """The fields of a job that `submit` takes beside handler, payload and schedule."""

    name: str | None
    dedupe_key: str | None


class JobChanges(_OwnOptions, total=False):
    """The fields of a job that can be changed. None removes a limit."""

    handler: str | Mapping[str, Any]
    name: str
    payload: Any
    schedule: str | datetime
