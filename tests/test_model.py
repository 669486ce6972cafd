"""Values: ids, policies, states."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.model import DEFAULT_POLICY, Policy, from_micros, make_run_id, parse_run_id, policy_from_stored, to_micros
from duly.states import BORN, ENDED_STATES, LEGAL_MOVES, LIVE_STATES, RunState
from duly.store.ids import new_job_ids, shard_of

moments = st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001


@given(st.uuids(), moments)
def test_a_run_id_names_its_job_and_moment_and_nothing_is_lost(job_id: UUID, moment: datetime) -> None:
    assert parse_run_id(make_run_id(job_id, moment)) == (job_id, moment)


@given(st.uuids(), moments, moments)
def test_run_ids_of_a_job_sort_by_time(job_id: UUID, one: datetime, other: datetime) -> None:
    assert (make_run_id(job_id, one) < make_run_id(job_id, other)) == (one < other)


@given(st.text(max_size=80))
def test_any_other_text_is_no_run_id_and_no_error(text: str) -> None:
    parsed = parse_run_id(text)
    assert parsed is None or make_run_id(*parsed) == text.lower()


@given(moments)
def test_microseconds_are_exact(moment: datetime) -> None:
    assert from_micros(to_micros(moment)) == moment


def test_only_what_differs_from_the_defaults_is_stored() -> None:
    assert DEFAULT_POLICY.to_stored() is None
    assert Policy(max_retries=7).to_stored() == '{"max_retries":7}'


@given(
    st.builds(
        Policy,
        max_retries=st.integers(0, 10),
        timeout_seconds=st.floats(0.1, 1000),
        overlap=st.sampled_from(["skip", "queue", "parallel"]),
        catch_up_window_seconds=st.none() | st.integers(0, 1000),
    )
)
def test_a_policy_comes_back_from_the_store_as_it_went_in(policy: Policy) -> None:
    assert policy_from_stored(policy.to_stored()) == policy


def test_a_policy_written_by_a_newer_version_can_be_read() -> None:
    assert policy_from_stored('{"max_retries":1,"invented_later":true}') == Policy(max_retries=1)


def test_job_ids_are_unique_and_in_order_of_creation() -> None:
    now = 1_763_000_000_000_000
    ids = new_job_ids(20_000, now) + new_job_ids(1, now + 10_000)
    assert len(set(ids)) == 20_001
    assert ids == sorted(ids)
    assert all(job_id.version == 7 for job_id in ids)


def test_jobs_spread_evenly_over_the_shards() -> None:
    counts = [0] * 64
    for job_id in new_job_ids(64_000, 0):
        counts[shard_of(job_id, 64)] += 1
    assert min(counts) > 800
    assert max(counts) < 1200


def test_every_state_says_where_it_may_go() -> None:
    assert set(LEGAL_MOVES) == set(RunState)
    assert set(RunState) == LIVE_STATES | ENDED_STATES


@pytest.mark.parametrize("ended", sorted(ENDED_STATES - {RunState.DEAD}))
def test_what_has_ended_stays_ended(ended: RunState) -> None:
    assert not LEGAL_MOVES[ended]


def test_a_dead_run_can_only_be_redriven() -> None:
    assert LEGAL_MOVES[RunState.DEAD] == {RunState.QUEUED, RunState.WAITING}


def test_nothing_begins_as_claimed_or_tried() -> None:
    assert BORN.isdisjoint({RunState.RUNNING, RunState.RETRYING, RunState.SUCCEEDED, RunState.DEAD})


def test_ids_made_one_after_the_other_are_in_order_even_if_the_clock_steps_back() -> None:
    now = 1_763_200_000_000_000
    made = [
        job_id
        for step in (0, 0, 1, -3_000, 5_000, 10)
        for job_id in new_job_ids(5_000 if step == 5_000 else 3, now + step)
    ]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    # A clock that was set back far, as in a test, is followed.
    assert new_job_ids(1, now - 3_600_000_000)[0] < made[0]
