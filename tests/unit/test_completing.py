"""Which claims a completer closes: those that hold nothing more, and of which nothing was given up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from duly.errors import StoreUnavailable
from duly.store.pool import Pool
from duly.store.runs import ClaimedRun, Succeeded
from duly.worker.completer import Completer


class Store:
    """Takes successes; those whose result is `refused` it does not."""

    def __init__(self) -> None:
        self.away = False
        self.recorded: list[UUID] = []
        self.closed: list[UUID] = []

    async def complete(self, _pool: Any, ended: Sequence[Succeeded], close: Sequence[UUID] = ()) -> int:
        if self.away:
            raise StoreUnavailable("away")
        accepted = [end.run.job_id for end in ended if end.result != "refused"]
        self.recorded += accepted
        self.closed += close
        return len(accepted)

    async def settled(self, _pool: Any, _runs: Sequence[ClaimedRun]) -> set[Any]:
        return set()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    for name in ("complete", "settled"):
        monkeypatch.setattr(f"duly.store.runs.{name}", getattr(store, name))
    return store


@pytest.fixture
async def completer() -> Completer:
    return Completer(cast("Pool", None), lambda _: None)


def claimed(count: int) -> tuple[UUID, list[ClaimedRun]]:
    claim_id, runs = uuid4(), [ClaimedRun() for _ in range(count)]
    for ordinal, run in enumerate(runs, start=1):
        run.claim_id, run.ordinal, run.job_id, run.scheduled_at = claim_id, ordinal, uuid4(), cast("Any", ordinal)
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
    assert completer.take_emptied() == [claim_id], "nobody beats for it any more"


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
