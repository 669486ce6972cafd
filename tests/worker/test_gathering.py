"""Outcomes are written at once, or wait a little for more if the last flush was large."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from duly.store.pool import Pool
from duly.worker import completer as completer_module
from duly.worker.completer import FLUSH_AT, Completer
from harness.waiting import eventually


class Recording(Completer):
    """A completer that notes the number of outcomes of each flush."""

    def __init__(self, *, busy: bool = False) -> None:
        super().__init__(cast("Pool", None), self._count, may_gather=lambda: not busy)
        self.flushes: list[int] = []
        self.recorded = 0

    def _count(self, count: int) -> None:
        self.recorded += count

    async def _flush(self, outcomes: Sequence[Any]) -> None:
        await asyncio.sleep(0)
        self.flushes.append(len(outcomes))

    def give(self, count: int) -> None:
        for _ in range(count):
            self.add(cast("Any", object()))


@asynccontextmanager
async def after_a_flush_of(count: int, *, busy: bool = False) -> AsyncIterator[Recording]:
    completer = Recording(busy=busy)
    await completer.start()
    completer.give(count)
    await eventually(lambda: completer.recorded == count)
    assert completer.flushes == [count]
    try:
        yield completer
    finally:
        async with asyncio.timeout(5):
            await completer.stop()


@pytest.fixture
def long_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes outcomes wait longer than anything else on the machine takes."""
    monkeypatch.setattr(completer_module, "GATHER_SECONDS_PER_OUTCOME", 0.01)
    monkeypatch.setattr(completer_module, "MAX_GATHER_SECONDS", 0.4)


async def one_by_one(completer: Recording, count: int) -> None:
    for _ in range(count):
        completer.give(1)
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.mark.usefixtures("long_gathers")
async def test_after_much_what_trickles_in_is_written_together() -> None:
    async with after_a_flush_of(50) as completer:
        await one_by_one(completer, 10)
        await eventually(lambda: completer.recorded == 60)
        assert completer.flushes == [50, 10]


@pytest.mark.usefixtures("long_gathers")
async def test_what_comes_during_a_flush_waits_as_well() -> None:
    completer = Recording()
    completer.give(50)
    asyncio.get_running_loop().call_soon(completer.give, 3)
    await completer.start()
    await eventually(lambda: completer.recorded >= 50)
    await one_by_one(completer, 4)
    await eventually(lambda: completer.recorded == 57)
    await completer.stop()
    assert len(completer.flushes) == 2


@pytest.mark.usefixtures("long_gathers")
async def test_enough_of_them_do_not_wait() -> None:
    async with after_a_flush_of(50) as completer:
        completer.give(FLUSH_AT)
        for _ in range(10):
            await asyncio.sleep(0)
        assert completer.flushes == [50, FLUSH_AT]


@pytest.mark.usefixtures("long_gathers")
async def test_nothing_waits_while_runs_wait_for_room() -> None:
    async with after_a_flush_of(50, busy=True) as completer:
        for expected in range(1, 4):
            completer.give(1)
            for _ in range(10):
                await asyncio.sleep(0)
            assert completer.flushes == [50] + [1] * expected


async def test_a_lone_outcome_is_written_at_once() -> None:
    """After a flush of one outcome, the next outcome hardly waits."""
    async with after_a_flush_of(1) as completer:
        completer.give(1)
        await eventually(lambda: completer.recorded == 2)
