"""Turns on the event loop: each pass executes one piece of all long work."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from duly import turns
from duly.turns import Turns, turn


class Passes:
    """Counts the passes of the running loop."""

    def __init__(self) -> None:
        self.number = 0
        self._loop = asyncio.get_running_loop()
        self._ended = False
        self._count()

    def _count(self) -> None:
        self.number += 1
        if not self._ended:
            self._loop.call_soon(self._count)

    def end(self) -> None:
        self._ended = True


async def test_one_goes_on_in_each_pass_and_nobody_is_overtaken_twice() -> None:
    passes = Passes()
    went: list[tuple[int, int]] = []

    async def work(number: int) -> None:
        for _ in range(3):
            await turn()
            went.append((passes.number, number))

    await asyncio.gather(*(work(number) for number in range(20)))
    passes.end()
    assert max(Counter(at for at, _ in went).values()) == 1
    order = [number for _, number in went]
    # Worker 0 had its first turn before the others came, and so asked for its second turn first.
    assert order == [0, *range(20), *range(20), *range(1, 20)]


async def test_whoever_is_alone_waits_for_nothing() -> None:
    passes = Passes()
    before = passes.number
    await turn()
    assert passes.number == before
    passes.end()


async def test_who_gave_up_waiting_holds_up_nobody() -> None:
    await turn()
    waiting = [asyncio.create_task(turn()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    await asyncio.wait_for(waiting[2], 5)
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.wait_for(turn(), 5)


async def test_long_work_lets_others_go_on_after_a_few_milliseconds() -> None:
    turns_of_work = Turns()
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    until = time.monotonic() + 5
    while others < 3 and time.monotonic() < until:
        await turns_of_work.give()
    beside.cancel()
    assert others >= 3


def test_each_loop_has_its_own_waiting_tasks_and_leaves_nothing_behind() -> None:
    before = len(turns._waiting)
    for _ in range(3):
        asyncio.run(turn())
    assert len(turns._waiting) <= before + 1
