"""The checks of a client's input: every invalid field is named, and nothing invalid passes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.checks import Plan, check_labels, check_policy, check_text, payload_text, plan_moment, plan_schedule
from duly.config import load_settings
from duly.errors import ConfigError, InvalidInput, InvalidSchedule
from duly.model import JobRequest, Policy
from duly.timing import jitter_offset


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("missed_window", "run_once"), ("overlap", "drop"), ("retry_backoff", "random"), ("dst_gap", ""),
        ("dst_fold", None), ("max_retries", -1), ("max_retries", True), ("max_retries", 1.5), ("max_missed", "many"),
        ("jitter_seconds", 86_401), ("timeout_seconds", 0), ("timeout_seconds", float("nan")),
        ("timeout_seconds", "5"), ("timeout_seconds", 10**4000), ("max_retries", [1]),
        ("timeout_seconds", float("inf")), ("retry_delay_seconds", -0.1), ("catch_up_window_seconds", -5),
        ("idempotency_key_template", "{{nothing}}"), ("idempotency_key_template", ""),
    ],
)  # fmt: skip
def test_a_policy_that_breaks_a_rule_is_refused_by_its_fields_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_policy(Policy(**{field: value}))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "payload",
    [
        {"a": "x\x00"}, {"\x00": 1}, ["\x00"], {"a": {"b": ["\x00"]}}, "\ud800", {"a": float("nan")},
        {"a": float("inf")}, {1, 2}, {"a": object()}, b"bytes",
    ],
)  # fmt: skip
def test_a_payload_that_json_or_postgresql_cannot_hold_is_refused(payload: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        payload_text(payload, limit=1000)
    assert caught.value.field == "payload"


def test_a_payload_nested_without_end_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidInput, match="200 levels"):
        payload_text(deep, limit=10**6)


def test_true_is_not_one_even_after_one_was_checked() -> None:
    check_policy(Policy(max_retries=1))
    with pytest.raises(InvalidInput, match="max_retries"):
        check_policy(Policy(max_retries=True))


def test_the_size_counts_bytes_and_not_escapes() -> None:
    assert payload_text("漢" * 32, limit=98)


def test_a_payload_of_many_levels_is_refused() -> None:
    deep: Any = {}
    for _ in range(300):
        deep = {"a": deep}
    with pytest.raises(InvalidInput, match="200 levels"):
        payload_text(deep, limit=10**6)


def test_a_backslash_before_u0000_is_not_a_nul() -> None:
    assert payload_text({"path": "\\u0000"}, limit=1000) == '{"path":"\\\\u0000"}'


def test_a_surrogate_pair_is_an_ordinary_character() -> None:
    assert payload_text({"smile": "😀"}, limit=1000)


def test_the_size_of_a_payload_is_bounded() -> None:
    assert payload_text("x" * 98, limit=100)
    with pytest.raises(InvalidInput, match="payload_ref"):
        payload_text("x" * 99, limit=100)


@given(st.text())
def test_a_checked_text_has_no_control_characters_and_encodes(text: str) -> None:
    try:
        checked = check_text("name", text, longest=20)
    except InvalidInput:
        return
    assert checked.encode()
    assert not any(ord(letter) < 32 for letter in checked)


@pytest.mark.parametrize("labels", [{"a": 1}, {1: "a"}, {"": "x"}, {"a": "\n"}, ["a"], {str(n): "" for n in range(33)}])
def test_labels_are_a_small_map_of_texts(labels: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_labels(labels)
    assert caught.value.field.startswith("labels")


class TestSettings:
    @pytest.fixture(autouse=True)
    def _elsewhere(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def test_flags_win_over_environment_over_file(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "duly.toml").write_text("concurrency = 1\nport = 1111\nshards = 8\n")
        monkeypatch.setenv("DULY_CONCURRENCY", "2")
        monkeypatch.setenv("DULY_PORT", "2222")
        settings = load_settings(concurrency=3)
        assert (settings.concurrency, settings.port, settings.shards) == (3, 2222, 8)

    def test_a_heartbeat_slower_than_a_third_of_the_lease_refuses_to_start(self) -> None:
        with pytest.raises(ConfigError, match="heartbeat_seconds"):
            load_settings(worker_lease_seconds=6, heartbeat_seconds=3)

    @pytest.mark.parametrize(
        "flags", [{"port": 99999}, {"shards": 0}, {"concurrency": "many"}, {"coordinator": "raft"}]
    )
    def test_a_setting_that_makes_no_sense_is_one_sentence(self, flags: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="|".join(flags)):
            load_settings(**flags)

    def test_a_broken_file_is_one_sentence(self, tmp_path: Any) -> None:
        (tmp_path / "duly.toml").write_text("port = = 1")
        with pytest.raises(ConfigError, match=r"duly\.toml"):
            load_settings()


NOW = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)


def plan(request: JobRequest) -> Plan:
    return plan_schedule(request, now=NOW, job_id=UUID(int=7), created_at=NOW)


@pytest.mark.parametrize("schedule", [None, "now", "2026-06-01T09:00:00Z", "2026-06-01T09:00", NOW])
@pytest.mark.parametrize(("field", "value"), [("start_at", NOW), ("end_at", NOW), ("max_runs", 1)])
def test_bounds_of_a_one_off_are_refused_by_name(schedule: Any, field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match="recurring") as caught:
        plan(JobRequest("noop", schedule=schedule, **{field: value}))
    assert caught.value.field == field


@pytest.mark.parametrize("timezone", ["Factory", "localtime", "posixrules", "right/UTC", "leapseconds", "", "X/Y"])
@pytest.mark.parametrize("schedule", [None, "0 9 * * *", "every 1h", "2026-06-01T09:00:00Z", "FREQ=DAILY"])
def test_what_is_no_zone_is_refused_at_submit(schedule: str | None, timezone: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        plan(JobRequest("noop", schedule=schedule, timezone=timezone))
    assert caught.value.field == "timezone"


def test_the_jitter_of_a_one_off_is_applied_at_submit() -> None:
    policy = Policy(jitter_seconds=600)
    offset = jitter_offset(UUID(int=7), 600)
    at = datetime(2026, 6, 1, 9, tzinfo=UTC)
    for schedule in (at, at.isoformat(), "2026-06-01T09:00"):
        planned = plan(JobRequest("noop", schedule=schedule, policy=policy))
        assert planned.first == at + offset
    assert plan_moment(at, job_id=UUID(int=7), jitter_seconds=600) == (at + offset, "2026-06-01T09:00:00Z")
    assert plan(JobRequest("noop", policy=policy)).first is None


@pytest.mark.parametrize("schedule", ["9999-12-30T23:59:00Z", "9999-12-31T00:00:00Z"])
def test_jitter_past_the_calendar_is_refused_by_name(schedule: str) -> None:
    with pytest.raises(InvalidInput, match="9999") as caught:
        plan(JobRequest("noop", schedule=schedule, policy=Policy(jitter_seconds=86_400)))
    assert caught.value.field == "jitter_seconds"
    rule = "DTSTART:99991231T235900Z\nRRULE:FREQ=MINUTELY;COUNT=1"
    with pytest.raises(InvalidSchedule):
        plan(JobRequest("noop", schedule=rule, policy=Policy(jitter_seconds=86_400)))
