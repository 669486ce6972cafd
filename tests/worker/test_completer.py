"""A completer closes the claims that hold no more runs, unless one of their runs was given up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID, uuid4

import asyncpg
import pytest

from duly.errors import StoreUnavailable
from duly.model import Buried, ClaimedRun, Requeued, Succeeded
from duly.store.pool import Pool
from duly.store.sifting import MAX_PAUSE_SECONDS
from duly.worker.completer import Completer


class Store:
    """Takes outcomes, except those with the result `refused`. A statement with a member of `raising` draws an error."""

    def __init__(self) -> None:
        self.away = False
        self.raising: set[UUID] = set()
        """Jobs and claims."""
        self.asked = 0
        self.requeued: list[UUID] = []
        self.buried: list[UUID] = []
        self.recorded: list[UUID] = []
        self.closed: list[UUID] = []

    async def complete(self, _pool: Any, ended: Sequence[Succeeded], close: Sequence[UUID] = ()) -> int:
        if self.away:
            raise StoreUnavailable("away")
        self._look(ended, close)
        accepted = [end.run.job_id for end in ended if end.result != "refused"]
        self.recorded += accepted
        self.closed += close
        return len(accepted)

    async def requeue(self, _pool: Any, ended: Sequence[Requeued]) -> int:
        self._look(ended)
        self.requeued += [end.run.job_id for end in ended]
        return len(ended)

    async def bury(self, _pool: Any, ended: Sequence[Buried]) -> int:
        self._look(ended)
        self.buried += [end.run.job_id for end in ended]
        return len(ended)

    def _look(self, ended: Sequence[Succeeded | Requeued | Buried], close: Sequence[UUID] = ()) -> None:
        self.asked += 1
        if self.raising.intersection([*close, *(end.run.job_id for end in ended)]):
            error = StoreUnavailable("a trigger says no")
            error.__cause__ = asyncpg.PostgresError.new({"C": "P0001", "M": "no", "S": "ERROR"})
            raise error

    async def settled(self, _pool: Any, _runs: Sequence[ClaimedRun]) -> set[Any]:
        return set()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    for name in ("complete", "requeue", "bury", "settled"):
        monkeypatch.setattr(f"duly.store.runs.{name}", getattr(store, name))
    return store


@pytest.fixture
async def completer() -> Completer:
    return Completer(cast("Pool", None), lambda _: None)


def claimed(count: int) -> tuple[UUID, list[ClaimedRun]]:
    claim_id, runs = uuid4(), [ClaimedRun() for _ in range(count)]
    for ordinal, run in enumerate(runs, start=1):
        run.claim_id, run.ordinal, run.job_id = claim_id, ordinal, uuid4()
        run.scheduled_at, run.attempt = datetime(2030, 1, 1, tzinfo=UTC), 1
    return claim_id, runs


def ended(run: ClaimedRun, result: str | None = None) -> Succeeded:
    return Succeeded(run, 1, 2, result)


async def test_a_claim_is_closed_with_the_last_of_its_runs(store: Store, completer: Completer) -> None:
    claim_id, (first, second) = claimed(2)
    completer.hold(claim_id, 2)
    completer.add(ended(first))
    await completer.run_once()
    assert (store.closed, completer.take_emptied()) == ([], [])
    completer.add(ended(second))
    await completer.run_once()
    assert store.closed == [claim_id]
    assert completer.take_emptied() == [claim_id]


async def test_a_claim_with_a_run_that_was_given_up_is_left_to_rescue(store: Store, completer: Completer) -> None:
    claim_id, (lost, kept) = claimed(2)
    completer.hold(claim_id, 2)
    completer.forget(lost)
    completer.add(ended(kept))
    await completer.run_once()
    await completer.run_once()
    assert store.recorded == [kept.job_id]
    assert store.closed == []
    assert completer.take_emptied() == [claim_id], "its lease must not be extended any more"


async def test_a_claim_with_an_outcome_that_was_refused_is_left_to_rescue(store: Store, completer: Completer) -> None:
    claim_id, (first, second) = claimed(2)
    completer.hold(claim_id, 2)
    for outcome in (ended(first, "refused"), ended(second)):
        completer.add(outcome)
        await completer.run_once()
    assert store.recorded == [second.job_id]
    assert store.closed == []


async def test_what_could_not_be_written_is_written_when_the_store_is_back(store: Store, completer: Completer) -> None:
    claim_id, (run,) = claimed(1)
    completer.hold(claim_id, 1)
    completer.add(ended(run))
    store.away = True
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await completer.run_once()
    store.away = False
    await completer.run_once()
    assert store.recorded == [run.job_id]
    assert store.closed == [claim_id]


async def passes(completer: Completer, most: int = 10) -> int:
    """Runs the completer until it succeeds. Returns the number of failures before that."""
    for failed in range(most):
        try:
            await completer.run_once()
        except StoreUnavailable:
            continue
        return failed
    raise AssertionError(f"the completer failed {most} times")


async def test_an_outcome_that_draws_an_error_each_time_is_kept_and_keeps_no_other(
    store: Store, completer: Completer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_id, runs = claimed(500)
    completer.hold(claim_id, 500)
    bad = runs[123]
    store.raising = {bad.job_id}
    for run in runs:
        completer.add(ended(run))
    assert await passes(completer) == 2, "the error may be temporary, so the batch is sent again as it is"
    assert sorted(store.recorded) == sorted(run.job_id for run in runs if run is not bad)
    assert completer.apart == 1
    assert (store.closed, completer.take_emptied()) == ([], []), "the claim's lease must be kept"
    assert caplog.text.count(str(bad.job_id)) == 1
    now = asyncio.get_running_loop().time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    waits = []
    for _ in range(8):
        wait = await completer.run_once()
        assert wait is not None
        waits.append(wait)
        now += wait
    assert 0 < waits[0] < waits[2] < waits[-1] <= MAX_PAUSE_SECONDS
    assert caplog.text.count(str(bad.job_id)) == 1
    # Other claims are recorded and closed meanwhile.
    other_id, (other,) = claimed(1)
    completer.hold(other_id, 1)
    completer.add(ended(other))
    await completer.run_once()
    assert store.closed == [other_id]
    store.raising = set()
    now += MAX_PAUSE_SECONDS
    await completer.run_once()
    assert store.recorded[-1] == bad.job_id
    assert len(store.recorded) == len(set(store.recorded)) == 501
    assert store.closed == [other_id, claim_id]
    assert completer.apart == 0


async def test_what_was_requeued_and_buried_is_not_sent_again_for_another_that_failed(
    store: Store, completer: Completer
) -> None:
    claim_id, runs = claimed(30)
    completer.hold(claim_id, 30)
    for n, run in enumerate(runs):
        completer.add(
            [ended(run), Requeued(run, "queued", 0.0, 1, 2), Buried(run, 1, 2, "enough")][n % 3]  # type: ignore[arg-type]
        )
    store.raising = {runs[0].job_id}
    assert await passes(completer) == 2
    assert len(store.requeued) == len(store.buried) == 10
    assert sorted(store.recorded) == sorted(run.job_id for run in runs[3::3])
    assert completer.lost == 0


async def test_when_nothing_comes_through_it_is_asked_ever_again_and_not_of_each_outcome(
    store: Store, completer: Completer
) -> None:
    claim_id, runs = claimed(1_000)
    completer.hold(claim_id, 1_000)
    store.raising = {run.job_id for run in runs}
    for run in runs:
        completer.add(ended(run))
    for _ in range(30):
        with pytest.raises(StoreUnavailable):
            await completer.run_once()
    assert store.asked <= 30 * 10
    assert completer.apart == 0
    store.raising = set()
    await completer.run_once()
    assert sorted(store.recorded) == sorted(run.job_id for run in runs)
    assert store.closed == [claim_id]


async def test_a_claim_that_cannot_be_closed_keeps_no_outcome_from_being_written(
    store: Store, completer: Completer
) -> None:
    held = [claimed(1) for _ in range(40)]
    for claim_id, (run,) in held:
        completer.hold(claim_id, 1)
        completer.add(ended(run))
    store.raising = {held[11][0]}
    assert await passes(completer) == 2
    assert sorted(store.recorded) == sorted(run.job_id for _, (run,) in held)
    assert sorted(store.closed) == sorted(claim_id for claim_id, _ in held if claim_id not in store.raising)
    assert await completer.run_once() is None
