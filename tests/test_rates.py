"""The token bucket behind every limit per second."""

from __future__ import annotations

import pytest

from duly.rates import TokenBucket


def wait(bucket: TokenBucket, seconds: float) -> float:
    """Takes a token at this time. Returns 0, or the seconds until there is one."""
    return 0.0 if bucket.take(1, round(seconds * 1e6)) else bucket.seconds_to_next


def test_a_bucket_gives_its_rate_and_holds_a_second_of_it() -> None:
    bucket = TokenBucket(10)
    assert [wait(bucket, 100.0) for _ in range(10)] == [0.0] * 10
    assert wait(bucket, 100.0) == pytest.approx(0.1)
    assert wait(bucket, 100.05) == pytest.approx(0.05)
    assert wait(bucket, 100.1001) == 0.0
    assert sum(wait(bucket, 101 + n / 1000) == 0.0 for n in range(5000)) == pytest.approx(59, abs=2)
    slow = TokenBucket(0.1)
    assert wait(slow, 0.0) == 0.0
    assert wait(slow, 0.0) == pytest.approx(10.0)
    assert wait(slow, 10.1) == 0.0


def test_a_clock_that_steps_back_gives_nothing_and_counts_on() -> None:
    bucket = TokenBucket(2)
    assert bucket.take(5, 10_000_000) == 2
    assert bucket.available(5_000_000) == 0
    assert bucket.available(5_500_000) == 1


def test_unused_tokens_come_back_up_to_what_the_bucket_holds() -> None:
    bucket = TokenBucket(3)
    assert bucket.take(2, 0) == 2
    bucket.give_back(7)
    assert bucket.available(0) == 3
