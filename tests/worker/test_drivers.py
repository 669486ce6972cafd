"""Few asyncio tasks serve many runs, and handlers cannot see that."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time

from duly.worker.drivers import Drivers
from harness.waiting import eventually


class Item:
    def __init__(self, number: int) -> None:
        self.number = number
        self.task: asyncio.Task[None] | None = None


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_items_that_do_not_wait_share_a_task_and_keep_their_order() -> None:
    seen: list[int] = []

    async def execute(item: Item) -> None:
        seen.append(item.number)

    drivers = Drivers(execute)
    items = [Item(number) for number in range(100)]
    for item in items:
        drivers.add(item)
    await settle()
    assert seen == list(range(100))
    assert len({id(item.task) for item in items}) == 1


async def test_one_that_waits_holds_nobody_up() -> None:
    go_on = asyncio.Event()
    seen: list[int] = []

    async def execute(item: Item) -> None:
        if item.number % 3 == 0:
            await go_on.wait()
        seen.append(item.number)

    drivers = Drivers(execute)
    items = [Item(number) for number in range(30)]
    for item in items:
        drivers.add(item)
    await settle()
    assert seen == [number for number in range(30) if number % 3]
    waiting = {id(item.task) for item in items if item.number % 3 == 0}
    assert len(waiting) == 10, "items that wait must not share a task"
    go_on.set()
    await settle()
    assert len(seen) == 30


async def test_a_cancelled_task_and_a_changed_context_are_nobody_elses() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    found: list[tuple[int, int, int]] = []

    async def execute(item: Item) -> None:
        task = asyncio.current_task()
        assert task is not None
        found.append((item.number, variable.get(), task.cancelling()))
        if item.number == 1:
            variable.set(7)
        if item.number == 3:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

    drivers = Drivers(execute)
    for number in range(6):
        drivers.add(Item(number))
    await settle()
    assert found == [(number, 0, 0) for number in range(6)]


async def test_the_loop_gets_its_turns_while_many_compute() -> None:
    turns = 0
    done = 0

    def count_turn() -> None:
        nonlocal turns
        turns += 1
        if done < 40:
            asyncio.get_running_loop().call_soon(count_turn)

    async def execute(item: Item) -> None:
        nonlocal done
        until = time.monotonic() + 0.003
        while time.monotonic() < until:
            pass
        done += 1

    drivers = Drivers(execute)
    for number in range(40):
        drivers.add(Item(number))
    asyncio.get_running_loop().call_soon(count_turn)
    await eventually(lambda: done == 40)
    assert turns > 10


async def test_more_may_come_at_any_moment() -> None:
    seen: list[int] = []
    drivers: Drivers[Item]

    async def execute(item: Item) -> None:
        seen.append(item.number)
        if item.number < 50:
            drivers.add(Item(item.number + 1))
            if item.number % 2:
                await asyncio.sleep(0)

    drivers = Drivers(execute)
    drivers.add(Item(0))
    await eventually(lambda: len(seen) == 51)
    assert sorted(seen) == list(range(51))
