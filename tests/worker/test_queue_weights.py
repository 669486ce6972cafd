"""Several queues in one worker: they share it by weight, none starves, and no free place stays idle."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import uuid4

import pytest

from duly.config import Settings
from duly.model import Claim
from duly.node import running_worker
from duly.store import runs
from duly.store.pool import Pool
from duly.worker.claimer import Claimer
from duly.worker.handler.task import Task
from harness.store import count, put_now
from harness.waiting import eventually


def claimer(pool: Pool, queues: dict[str, int] | list[str], *, room: int, taken: list[Claim]) -> Claimer:
    return Claimer(
        pool, pool.clock, worker_id=uuid4(), queues=queues, lease_seconds=60, poll_seconds=1, concurrency=room,
        room=lambda: room, started=lambda claim, _: taken.append(claim),
    )  # fmt: skip


def names(taken: list[Claim]) -> Counter[str]:
    return Counter(run.name for claim in taken for run in claim.runs)


async def test_queues_that_could_each_fill_the_worker_share_it_by_weight(pool: Pool) -> None:
    for queue in ("heavy", "light"):
        await put_now(pool, 1500, queue=queue, name=queue)
    taken: list[Claim] = []
    claiming = claimer(pool, {"light": 1, "heavy": 3}, room=2, taken=taken)
    for _ in range(500):
        await claiming.run_once()
    shares = names(taken)
    assert shares.total() == 1000
    # The tolerance is five standard deviations of 500 draws at 3 : 1.
    assert shares["heavy"] / 1000 == pytest.approx(0.75, abs=0.1)


async def test_a_light_queue_does_not_wait_until_a_heavy_one_is_empty(pool: Pool, settings: Settings) -> None:
    await put_now(pool, 3000, queue="heavy", name="heavy", handler="note")
    await put_now(pool, 20, queue="light", name="light", handler="note")
    order: list[str] = []

    async def note(ctx: object) -> None:
        order.append(str(getattr(ctx, "job_name", "")))

    tasks = {"note": Task("note", note)}
    async with running_worker(pool, tasks, settings, queues={"heavy": 10, "light": 1}, concurrency=10):
        await eventually(lambda: len(order) == 3020, seconds=60)
    last = max(place for place, name in enumerate(order) if name == "light")
    # The light runs need two claims of ten, and one claim in eleven is for them: the chance that more than 2,500 other
    # runs come before them is below one in a billion.
    assert last < 2520
    assert Counter(order) == {"heavy": 3000, "light": 20}


async def test_priority_goes_before_weight(pool: Pool) -> None:
    for _ in range(10):
        await put_now(pool, 20, queue="heavy", name="later")
        await put_now(pool, 20, queue="light", name="urgent", priority=9)
        taken: list[Claim] = []
        await claimer(pool, {"heavy": 1000, "light": 1}, room=20, taken=taken).run_once()
        assert names(taken) == {"urgent": 20}


async def test_a_claim_that_the_first_queue_does_not_fill_goes_on_with_the_others(pool: Pool) -> None:
    for queue in ("one", "two", "three"):
        await put_now(pool, 3, queue=queue, name=queue)
    taken: list[Claim] = []
    await claimer(pool, ["one", "two", "three"], room=20, taken=taken).run_once()
    assert names(taken) == {"one": 3, "two": 3, "three": 3}


async def test_a_worker_with_a_thousand_queues_looks_at_those_that_hold_something(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[list[tuple[str, int]]] = []
    claim = runs.claim

    async def seen(*args: Any, lanes: runs.Lanes, **named: Any) -> Claim:
        looked_at.append(list(zip(*lanes, strict=True)))
        return await claim(*args, lanes=lanes, **named)

    monkeypatch.setattr(runs, "claim", seen)
    queues = [f"queue {number}" for number in range(1000)]
    taken: list[Claim] = []
    claiming = claimer(pool, queues, room=20, taken=taken)
    assert await claiming.run_once() is None
    assert looked_at.pop() == []
    await put_now(pool, 3, queue="queue 7", name="seven")
    await put_now(pool, 3, queue="queue 999", name="last")
    await put_now(pool, 3, queue="queue 30", name="urgent", priority=9)
    await put_now(pool, 3, queue="somebody else's", name="not mine")
    await put_now(pool, 1, queue="queue 500", name="later", priority=2)
    await pool.query("update duly.runs set run_at = duly.now() + interval '5 seconds' where queue = 'queue 500'")
    wait = await claiming.run_once()
    first, *equal, last = looked_at.pop()
    assert (first, last) == (("queue 30", 9), ("queue 500", 2))
    assert set(equal) == {("queue 7", 5), ("queue 999", 5)}
    assert names(taken) == {"seven": 3, "last": 3, "urgent": 3}
    assert wait is not None, "the claimer must sleep until the next run may start"


async def test_the_weights_are_shown_with_the_worker(pool: Pool, settings: Settings) -> None:
    for queues, weights in (({"a": 3, "b": 1}, '{"a": 3, "b": 1}'), (["a", "b"], None)):
        async with running_worker(pool, {}, settings, queues=queues) as worker:
            (row,) = await pool.query("select info from duly.nodes where node_id = $1", worker.worker_id)
            info = row["info"]
            assert '"queues": ["a", "b"]' in info
            assert (f'"weights": {weights}' in info) == (weights is not None)


async def test_one_free_place_is_filled_while_the_others_are_busy(pool: Pool, settings: Settings) -> None:
    # No poll happens during the test.
    settings = settings.model_copy(update={"poll_seconds": 3600.0})
    began: list[asyncio.Event] = []

    async def hold() -> None:
        began.append(asyncio.Event())
        await began[-1].wait()

    await put_now(pool, 14, handler="hold")
    async with running_worker(pool, {"hold": Task("hold", hold)}, settings, concurrency=10):
        await eventually(lambda: len(began) == 10)
        for freed in range(4):
            began[freed].set()
            await eventually(lambda: len(began) > 10 + freed)  # noqa: B023 - it is awaited here
        for event in began:
            event.set()
        await eventually(lambda: len(began) == 14)
        for event in began:
            event.set()

        async def all_recorded() -> bool:
            return await count(pool, "history") == 14

        await eventually(all_recorded)
