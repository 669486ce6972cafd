"""Floors: the position at which a claim begins in a lane that is slow to walk."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from duly.model import Claim
from duly.worker.floors import MAX_PAUSE_SECONDS, MIN_PAUSE_SECONDS, SLACK, Floors

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LANES = (["a", "a", "b"], [9, 5, 5])
NOWHERE = [None, None, None]


def found(took: float, lanes: int = 3, at: datetime = NOW) -> Claim:
    return Claim(None, [], None, lanes, at, at, took)


def test_as_long_as_claims_are_quick_the_whole_lanes_are_looked_at() -> None:
    floors = Floors()
    for moment in range(10):
        assert floors.of(LANES, moment) == NOWHERE
        floors.learn(LANES, found(0.001), moment, full=False)


def test_after_a_slow_claim_the_next_ones_begin_where_it_found_the_lanes_empty() -> None:
    floors = Floors()
    floors.of(LANES, 0)
    floors.learn(LANES, found(0.02), 0, full=False)
    assert floors.of(LANES, 0.5) == [NOW - SLACK] * 3
    later = NOW + timedelta(seconds=1)
    floors.learn(LANES, found(0.001, at=later), 0.5, full=False)
    assert floors.of(LANES, 0.6) == [later - SLACK] * 3


def test_a_claim_that_was_full_says_nothing_of_the_lanes_it_did_not_come_to() -> None:
    floors = Floors()
    floors.of(LANES, 0)
    floors.learn(LANES, found(0.02, lanes=2), 0, full=False)
    assert floors.of(LANES, 0.1) == [NOW - SLACK, NOW - SLACK, None]


def test_floors_belong_to_lanes_whatever_order_they_are_looked_at_in() -> None:
    floors = Floors()
    floors.of(LANES, 0)
    floors.learn(LANES, found(0.02, lanes=1), 0, full=False)
    assert floors.of((["b", "a"], [5, 9]), 0.1) == [None, NOW - SLACK]


def test_the_whole_lanes_are_looked_at_again_and_again() -> None:
    floors = Floors()
    for took, pause in ((0.006, MIN_PAUSE_SECONDS), (0.03, 3.0), (60.0, MAX_PAUSE_SECONDS)):
        started = 100.0
        floors = Floors()
        floors.of(LANES, started)
        floors.learn(LANES, found(took), started, full=False)
        assert floors.of(LANES, started + pause - 0.01) != NOWHERE
        assert floors.of(LANES, started + pause + 0.01) == NOWHERE
    # Once claims are quick again, the whole lanes are read again.
    floors.learn(LANES, found(0.001), 200, full=False)
    assert floors.of(LANES, 200.001) == NOWHERE


def test_a_floor_never_goes_back() -> None:
    floors = Floors()
    floors.of(LANES, 0)
    floors.learn(LANES, found(0.02), 0, full=False)
    floors.of(LANES, 0.1)
    floors.learn(LANES, found(0.001, at=NOW - timedelta(seconds=30)), 0.1, full=False)
    assert floors.of(LANES, 0.2) == [NOW - SLACK] * 3


def test_when_a_whole_look_brought_all_it_might_from_below_a_floor_the_next_one_is_whole_too() -> None:
    """More runs than fit into a claim were committed late, below the floor."""
    floors = Floors()
    floors.of(LANES, 0)
    floors.learn(LANES, found(0.02), 0, full=False)
    floors.of(LANES, 5)
    late = found(0.02, lanes=2, at=NOW - timedelta(seconds=6))
    floors.learn(LANES, late, 5, full=True)
    assert floors.of(LANES, 5.001) == NOWHERE
    floors.learn(LANES, found(0.02), 5.001, full=False)
    assert floors.of(LANES, 5.002) != NOWHERE


def test_a_long_queue_alone_is_no_reason_to_look_at_all_of_it_again() -> None:
    """Otherwise every claim of a drain would walk over all the runs that the drain has taken."""
    floors = Floors()
    moment = NOW
    for second in range(0, 100, 20):
        assert floors.of(LANES, second) == NOWHERE
        moment += timedelta(seconds=1)
        floors.learn(LANES, found(0.02, lanes=2, at=moment), second, full=True)
        assert floors.of(LANES, second + 1) != NOWHERE
