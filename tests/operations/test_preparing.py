"""Preparing many jobs: their common shape is checked once, with the same result as if each job were checked."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from duly.app import Duly
from duly.config import Settings
from duly.errors import InvalidInput
from duly.model import DEFAULT_POLICY, JobRequest, Policy
from duly.model.policy import _policy_with
from duly.operations.preparing import Preparing, prepare
from duly.store.ids import new_job_ids, shard_of

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
NEW_YORK = ZoneInfo("America/New_York")
DOUBLED = datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK)
SETTINGS = Settings.model_construct(database_url="", payload_max_bytes=1000)
SHARDS = 64

# Each request is followed by others that are equal to it, or nearly.
VARIED = [
    JobRequest("a"),
    JobRequest("a", payload={"n": 1}),
    JobRequest("a", payload=[1, "ü", None], payload_ref="s3://there"),
    JobRequest("a", name="its own"),
    JobRequest("a", schedule="now"),
    JobRequest("b", queue="other", priority=9),
    JobRequest("b", policy=Policy()),
    JobRequest("b", policy=Policy(max_retries=1)),
    JobRequest("b", policy=Policy(max_retries=1, retry_delay_seconds=30.0)),
    JobRequest("b", labels={"a": "1", "b": "2"}),
    JobRequest("b", labels={"b": "2", "a": "1"}),
    JobRequest("b", labels={"a": "1"}),
    JobRequest("c", schedule=NOW + timedelta(hours=1)),
    JobRequest("c", schedule=NOW + timedelta(hours=2)),
    JobRequest("c", schedule=NOW - timedelta(days=2)),
    JobRequest("c", schedule=(NOW + timedelta(hours=1)).isoformat()),
    JobRequest("c", schedule="2026-11-01T01:30", timezone="America/New_York"),
    JobRequest("c", schedule="2026-11-01T01:30", timezone="America/New_York", policy=Policy(dst_fold="second")),
    JobRequest("c", schedule=DOUBLED),
    JobRequest("c", schedule=DOUBLED.replace(fold=1)),
    JobRequest("d", schedule="every 15m"),
    JobRequest("d", schedule="every 15m", start_at=NOW + timedelta(minutes=1), end_at=NOW + timedelta(days=1)),
    JobRequest("d", schedule="every 15m", start_at=NOW + timedelta(minutes=2)),
    JobRequest("d", schedule="every 15m", max_runs=1),
    JobRequest("d", schedule="every 15m", max_runs=2),
    JobRequest("d", schedule="0 9 * * MON", timezone="Europe/Berlin"),
    JobRequest("d", schedule="0 9 * * MON", timezone="Asia/Tokyo"),
    JobRequest("d", schedule="RRULE:FREQ=DAILY;BYHOUR=9"),
    JobRequest("d", schedule="0 * * * *", policy=Policy(jitter_seconds=3600)),
    JobRequest("d", schedule="every 15m", dedupe_key="k"),
    JobRequest("d", schedule="every 15m", dedupe_key="k", payload={"n": 2}),
    JobRequest("d", schedule=NOW + timedelta(hours=3), dedupe_key="l"),
    JobRequest({"type": "http", "url": "https://example.com/hook"}),
    JobRequest({"type": "http", "url": "https://example.com/other"}),
]


def test_a_job_among_others_is_prepared_as_it_would_be_alone() -> None:
    preparing = Preparing(NOW, tenant="them", settings=SETTINGS, shard_count=SHARDS)
    # All twice, so that later requests use what was remembered of the first one of their kind.
    requests = VARIED + [replace(request) for request in VARIED[::-1]]
    for job_id, request in zip(new_job_ids(len(requests), 1_700_000_000_000_000), requests, strict=True):
        alone = prepare(job_id, request, NOW, tenant="them", settings=SETTINGS, shard=shard_of(job_id, SHARDS))
        among = preparing.prepare(job_id, request)
        assert among == alone
        assert [type(value) for value in among] == [type(value) for value in alone]


@pytest.mark.parametrize(
    ("good", "bad", "field"),
    [
        (JobRequest("a", priority=1), {"priority": True}, "priority"),
        (JobRequest("a", priority=1), {"priority": 1.0}, "priority"),
        (JobRequest("a", schedule="every 1h", max_runs=1), {"max_runs": True}, "max_runs"),
        (JobRequest("a", policy=Policy(max_retries=1)), {"policy": Policy(max_retries=True)}, "max_retries"),
        (JobRequest("a"), {"policy": Policy(max_retries=[])}, "max_retries"),  # type: ignore[arg-type]
        (JobRequest("a"), {"policy": Policy(max_retries=object())}, "max_retries"),  # type: ignore[arg-type]
        (JobRequest("a"), {"queue": ["default"]}, "queue"),
        (JobRequest("a"), {"queue": "a\0b"}, "queue"),
        (JobRequest("a"), {"timezone": ["UTC"]}, "timezone"),
        (JobRequest("a"), {"handler": 7}, "handler"),
        (JobRequest("a"), {"handler": ""}, "handler"),
        (JobRequest("a"), {"name": ""}, "name"),
        (JobRequest("a"), {"name": 7}, "name"),
        (JobRequest("a"), {"payload": {"a": float("nan")}}, "payload"),
        (JobRequest("a"), {"payload": "x" * 1000}, "payload"),
        (JobRequest("a"), {"payload": "a\0b"}, "payload"),
        (JobRequest("a"), {"payload_ref": ""}, "payload_ref"),
        (JobRequest("a"), {"dedupe_key": ""}, "dedupe_key"),
        (JobRequest("a"), {"labels": ["a"]}, "labels"),
        (JobRequest("a"), {"labels": "a"}, "labels"),
        (JobRequest("a", labels={"a": "1"}), {"labels": {"a": 1}}, "labels.a"),
        (JobRequest("a", labels={"a": "1"}), {"labels": {"a": ["1"]}}, "labels.a"),
        (JobRequest("a", schedule=NOW), {"schedule": NOW.replace(tzinfo=None)}, "schedule"),
        (JobRequest("a", schedule=NOW), {"schedule": NOW.replace(year=1800)}, "schedule"),
        (JobRequest("a", schedule=NOW), {"schedule": 7}, "schedule"),
        (JobRequest("a", schedule="every 1h"), {"end_at": NOW - timedelta(days=1)}, "schedule"),
    ],
)
def test_a_wrong_job_is_refused_behind_a_right_one_as_it_would_be_alone(
    good: JobRequest, bad: dict[str, Any], field: str
) -> None:
    first, second = new_job_ids(2, 1_700_000_000_000_000)
    wrong = replace(good, **bad)
    with pytest.raises(InvalidInput) as alone:
        prepare(second, wrong, NOW, tenant="them", settings=SETTINGS, shard=0)
    preparing = Preparing(NOW, tenant="them", settings=SETTINGS, shard_count=SHARDS)
    preparing.prepare(first, good)
    with pytest.raises(InvalidInput) as among:
        preparing.prepare(second, wrong)
    assert (among.value.field, str(among.value)) == (field, str(alone.value))
    assert type(among.value) is type(alone.value)


def test_jobs_with_the_same_changes_share_a_policy_and_others_do_not() -> None:
    app = Duly(settings=SETTINGS)
    app.task("careful", max_retries=9)(lambda: None)
    app.task("plain")(lambda: None)
    first, second = (app.request("careful", timeout_seconds=5, overlap="queue") for _ in range(2))
    assert first.policy is second.policy
    assert first.policy == Policy(max_retries=9, timeout_seconds=5, overlap="queue")
    assert app.request("plain", timeout_seconds=5).policy == Policy(timeout_seconds=5)
    assert app.request("plain").policy is DEFAULT_POLICY
    # True is equal to 1, but is no number of retries: the two must not share a policy.
    assert app.request("plain", max_retries=1).policy.max_retries is not True
    assert app.request("plain", max_retries=True).policy.max_retries is True
    # A value that cannot be remembered is taken as it is; the submit reports what is wrong with it.
    unhashable: Any = [1]
    assert app.request("plain", max_retries=unhashable).policy.max_retries == [1]  # type: ignore[comparison-overlap]
    # The number of remembered policies is bounded.
    assert {app.request("plain", max_retries=n).policy.max_retries for n in range(3000)} == set(range(3000))
    assert _policy_with.cache_info().currsize <= 1024
