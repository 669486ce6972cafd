"""Floors: where a claim begins in a lane that is slow to walk."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from duly.store.runs import Claim
from duly.worker.floors import LEAST_PAUSE, LONGEST_PAUSE, SLACK, Floors

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LANES = (["a", "a", "b"], [9, 5, 5])
NOWHERE = [None, None, None]


def found(lanes: int = 3, at: datetime = NOW) -> Claim:
    return Claim(None, [], None, lanes, at, at)


def test_as_long_as_claims_are_quick_the_whole_lanes_are_looked_at() -> None:
    floors = Floors()
    for moment in range(10):
        assert floors.of(LANES, moment) == NOWHERE
        floors.learn(LANES, found(), moment, 0.001)


def test_after_a_slow_claim_the_next_ones_begin_where_it_found_the_lanes_empty() -> None:
    floors = Floors()
    floors.of(LANES, 0)
    floors.learn(LANES, found(), 0, 0.02)
    assert floors.of(LANES, 0.5) == [NOW - SLACK] * 3
    later = NOW + timedelta(seconds=1)
    floors.learn(LANES, found(at=later), 0.5, 0.001)
    assert floors.of(LANES, 0.6) == [later - SLACK] * 3


def test_a_claim_that_was_full_says_nothing_of_the_lanes_it_did_not_come_to() -> None:
    floors = Floors()
    floors.of(LANES, 0)
    floors.learn(LANES, found(lanes=2), 0, 0.02)
    assert floors.of(LANES, 0.1) == [NOW - SLACK, NOW - SLACK, None]


def test_floors_belong_to_lanes_whatever_order_they_are_looked_at_in() -> None:
    floors = Floors()
    floors.of(LANES, 0)
    floors.learn(LANES, found(lanes=1), 0, 0.02)
    assert floors.of((["b", "a"], [5, 9]), 0.1) == [None, NOW - SLACK]


def test_the_whole_lanes_are_looked_at_again_and_again() -> None:
    floors = Floors()
    for took, pause in ((0.006, LEAST_PAUSE), (0.03, 3.0), (60.0, LONGEST_PAUSE)):
        started = 100.0
        floors = Floors()
        floors.of(LANES, started)
        floors.learn(LANES, found(), started, took)
        assert floors.of(LANES, started + pause - 0.01) != NOWHERE
        assert floors.of(LANES, started + pause + 0.01) == NOWHERE
    # When the reason is gone, all is as before.
    floors.learn(LANES, found(), 200, 0.001)
    assert floors.of(LANES, 200.001) == NOWHERE


def test_a_floor_never_goes_back() -> None:
    floors = Floors()
    floors.of(LANES, 0)
    floors.learn(LANES, found(), 0, 0.02)
    floors.of(LANES, 0.1)
    floors.learn(LANES, found(at=NOW - timedelta(seconds=30)), 0.1, 0.001)
    assert floors.of(LANES, 0.2) == [NOW - SLACK] * 3
