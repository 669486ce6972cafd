"""Delays of retries, the form in which errors and results are kept, and payloads as arguments of tasks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.errors import InvalidInput, Permanent, RetryAfter
from duly.model import Policy
from duly.worker.handler.errors import MAX_ERROR_BYTES, error_text, exception_text, result_text
from duly.worker.handler.task import Task
from duly.worker.retry import next_attempt_in, retry_delay


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [("immediate", [0, 0, 0, 0]), ("linear", [10, 20, 30, 40]), ("exponential", [10, 20, 40, 80])],
)
def test_the_delay_grows_as_the_policy_says(backoff: Any, delays: list[float]) -> None:
    policy = Policy(retry_backoff=backoff, retry_delay_seconds=10)
    assert [retry_delay(policy, attempt, spread=0) for attempt in (1, 2, 3, 4)] == delays


def test_the_delay_is_capped_even_after_a_thousand_attempts() -> None:
    policy = Policy(retry_delay_seconds=10, retry_max_delay_seconds=60)
    assert retry_delay(policy, 1000, spread=0) == 60


def test_a_crowd_that_fails_together_is_spread_by_up_to_a_quarter() -> None:
    delays = [retry_delay(Policy(retry_delay_seconds=100), 1) for _ in range(1000)]
    assert 100 <= min(delays) < 105
    assert 120 < max(delays) <= 125


def test_max_retries_counts_the_attempts_after_the_first() -> None:
    policy = Policy(max_retries=2)
    given_up = [next_attempt_in(policy, attempt, ValueError()) is None for attempt in (1, 2, 3)]
    assert given_up == [False, False, True]


@pytest.mark.parametrize(("seconds", "latest"), [(0, 0), (8, 10), (100, 125), (86_400, 86_460)])
def test_a_crowd_that_was_told_when_to_come_back_comes_no_earlier_and_spread(seconds: float, latest: float) -> None:
    delays = [next_attempt_in(Policy(), 1, RetryAfter(seconds)) or 0.0 for _ in range(1000)]
    assert seconds <= min(delays) <= max(delays) <= latest
    assert seconds == 0 or max(delays) - min(delays) > (latest - seconds) / 2


def test_a_permanent_error_is_not_tried_again_and_retry_after_only_as_often_as_the_policy_says() -> None:
    assert next_attempt_in(Policy(), 1, Permanent("no")) is None
    assert next_attempt_in(Policy(max_retries=0), 1, RetryAfter(7)) is None


@given(st.text(), st.text(), st.none() | st.text())
def test_any_error_text_becomes_json_that_postgresql_takes(kind: str, message: str, trace: str | None) -> None:
    stored = error_text(kind, message, trace)
    stored.encode("utf-8")
    assert "\x00" not in stored
    assert "\\u0000" not in stored
    assert json.loads(stored).keys() == {"type", "message", "traceback"}


def test_a_huge_error_is_cut_at_16_kib_and_keeps_both_ends() -> None:
    stored = error_text("E", "x" * 50_000_000, "begin " + "y" * 50_000_000 + " end")
    assert len(stored.encode()) <= MAX_ERROR_BYTES
    trace = json.loads(stored)["traceback"]
    assert trace.startswith("begin")
    assert trace.endswith("end")


def test_an_exception_whose_text_cannot_be_made_is_still_recorded() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("even this fails")

    assert "Broken" in json.loads(exception_text(Broken()))["type"]


@pytest.mark.parametrize(
    "result",
    [float("nan"), "a\x00b", "\ud800", {"deep": {1, 2}}, object(), [b"bytes"], {"\x00": 1}],
)
def test_a_result_that_json_cannot_say_is_kept_as_text(result: Any) -> None:
    stored = result_text(result)
    assert stored is not None
    stored.encode("utf-8")
    assert "\\u0000" not in stored
    json.loads(stored)


def test_a_number_of_many_thousand_digits_is_kept_as_text() -> None:
    assert "bits" in (result_text({"n": 10**5000}) or "")


def test_a_result_nested_without_end_is_cut() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert result_text(loop) is not None


class TestTask:
    def test_the_payloads_keys_are_the_arguments(self) -> None:
        task = Task("t", lambda ctx, a, b=2: None)
        assert task.check_payload({"a": 1}) == {"a": 1}
        assert task.takes_context

    @pytest.mark.parametrize("payload", [{}, {"a": 1, "c": 2}, [1], "text", None])
    def test_a_payload_that_does_not_fit_is_permanent_and_says_why(self, payload: Any) -> None:
        with pytest.raises(Permanent, match="payload of task t"):
            Task("t", lambda ctx, a: None).check_payload(payload)

    def test_a_task_that_takes_anything_is_given_anything(self) -> None:
        assert Task("t", lambda **rest: None).check_payload({"x": 1}) == {"x": 1}

    def test_a_parameter_that_no_payload_could_fill_is_refused_at_once(self) -> None:
        with pytest.raises(InvalidInput, match="handler"):
            Task("t", lambda ctx, *rest: None)
