"""The clock, which estimates the database's time from good and bad measurements."""

from __future__ import annotations

import time

import pytest

from duly.clock import DatabaseClock
from duly.model import from_micros

# How far the database's clock is ahead of the monotonic one.
AHEAD_US = 1_900_000_000_000_000


def observe(clock: DatabaseClock, sent: float, asked: float, received: float, *, ahead_us: int = AHEAD_US) -> None:
    """One measurement: the database reads its clock at `asked`."""
    clock.observe(from_micros(int(asked * 1e6) + ahead_us), sent, received)


def off_us(clock: DatabaseClock) -> int:
    return clock._offset_us - AHEAD_US


def test_a_worse_measurement_is_left_aside_when_it_agrees() -> None:
    clock = DatabaseClock()
    observe(clock, 100.0, 100.0005, 100.001)
    observe(clock, 100.1, 100.109, 100.15)
    assert abs(off_us(clock)) <= 1
    assert clock.error_us == pytest.approx(500)


def test_what_the_database_has_said_is_never_in_the_future() -> None:
    clock = DatabaseClock()
    # The request took no time and the answer 40 ms: the estimate is 20 ms behind, which the clock cannot know.
    observe(clock, 100.0, 100.0, 100.04)
    assert off_us(clock) == pytest.approx(-20_000, abs=1)
    # A slower measurement is no better estimate, but it shows that the database's clock is further ahead.
    observe(clock, 101.0, 101.05, 101.055)
    assert off_us(clock) == pytest.approx(-5_000, abs=1)


def test_what_the_database_has_not_been_asked_yet_it_cannot_have_said() -> None:
    clock = DatabaseClock()
    observe(clock, 100.0, 100.04, 100.04)
    assert off_us(clock) == pytest.approx(20_000, abs=1)
    observe(clock, 101.0, 101.005, 101.06)
    assert off_us(clock) == pytest.approx(5_000, abs=1)


def test_a_clock_that_stepped_is_followed_at_once() -> None:
    clock = DatabaseClock()
    observe(clock, 100.0, 100.0005, 100.001)
    observe(clock, 100.1, 100.125, 100.15, ahead_us=AHEAD_US - 3_600_000_000)
    assert off_us(clock) == pytest.approx(-3_600_000_000, abs=25_000)


def test_a_slow_answer_does_not_move_the_estimate_far_when_the_clocks_have_drifted_apart() -> None:
    clock = DatabaseClock()
    observe(clock, 100.0, 100.001, 100.002)
    # A minute later the clocks are 12 ms further apart, and this answer takes 6 s.
    observe(clock, 160.0, 160.001, 166.0, ahead_us=AHEAD_US - 12_000)
    assert off_us(clock) == pytest.approx(-12_000, abs=1_000)
    # A better measurement, though not as good as the first, decides from then on.
    observe(clock, 167.0, 167.01, 167.02, ahead_us=AHEAD_US - 12_000)
    assert off_us(clock) == pytest.approx(-12_000, abs=1)


def test_it_goes_on_between_measurements() -> None:
    clock = DatabaseClock()
    now = time.monotonic()
    observe(clock, now, now, now)
    assert clock.now_us() >= int(now * 1e6) + AHEAD_US - 1
