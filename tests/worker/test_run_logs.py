"""What handlers log and print is kept with their runs: complete, in order, bounded, and without secrets."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest

import isolated_tasks
from duly import Context, Duly
from duly.config import Settings
from duly.errors import InvalidInput, NotFound, StoreUnavailable
from duly.maintenance.tidier import Tidier
from duly.model import LogLine
from duly.operations import Operations
from duly.store import run_logs
from duly.store.pool import Pool
from duly.worker import run_logs as keeping
from harness.waiting import eventually
from harness.worker import Workbench

log = logging.getLogger("shop.orders")


@pytest.fixture(autouse=True)
def handlers_may_log() -> Any:
    logging.getLogger("shop").setLevel(logging.INFO)
    logging.getLogger("duly.run").setLevel(logging.INFO)
    yield
    logging.getLogger("shop").setLevel(logging.NOTSET)
    logging.getLogger("duly.run").setLevel(logging.NOTSET)


@pytest.fixture
def bench(pool: Pool, settings: Settings, operations: Operations) -> Workbench:
    return Workbench(pool, settings, operations)


async def kept(bench: Workbench, run_id: str) -> Sequence[LogLine]:
    """The whole log of a run that has ended."""

    async def complete() -> bool:
        page = await bench.operations.runs.logs(run_id)
        return page.complete

    await eventually(complete)
    return (await bench.operations.runs.logs(run_id)).items


def said(lines: Sequence[LogLine]) -> list[tuple[str | None, str, str]]:
    return [(line.level, line.source, line.text) for line in lines]


async def test_what_a_coroutine_logs_and_prints_is_kept_in_order(bench: Workbench) -> None:
    @bench.app.task()
    async def work(ctx: Context) -> None:
        log.info("began %d", 1)
        print("half a ", end="")
        await asyncio.sleep(0)
        print("line")
        ctx.log.warning("two\nlines")
        print("to stderr\nand more", file=sys.stderr)
        log.debug("not at this level")
        await asyncio.gather(*(asyncio.to_thread(log.info, "in a thread") for _ in range(2)))
        try:
            raise ValueError("oh\x00no")
        except ValueError:
            log.exception("failed")
        print("no line feed", end="")

    async with bench.working():
        run = await bench.succeeded(await bench.submit(work))
        lines = await kept(bench, run.run_id)
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))
    assert {(line.attempt, line.left_out) for line in lines} == {(1, 0)}
    found = said(lines)
    failed = found.pop(7)
    assert failed[:2] == ("ERROR", "shop.orders")
    assert failed[2].startswith("failed\nTraceback")
    assert failed[2].endswith("ValueError: oh\ufffdno")
    assert found == [
        ("INFO", "shop.orders", "began 1"),
        (None, "stdout", "half a line"),
        ("WARNING", "duly.run", "two\nlines"),
        (None, "stderr", "to stderr"),
        (None, "stderr", "and more"),
        ("INFO", "shop.orders", "in a thread"),
        ("INFO", "shop.orders", "in a thread"),
        (None, "stdout", "no line feed"),
    ]
    assert run.started_at is not None
    assert run.finished_at is not None
    assert run.started_at <= lines[0].at <= lines[-2].at <= run.finished_at


async def test_runs_side_by_side_each_have_their_own_lines(bench: Workbench) -> None:
    together = threading.Barrier(3)

    @bench.app.task()
    def in_thread(n: int) -> None:
        together.wait(10)
        for number in range(50):
            print(n, number)

    @bench.app.task()
    async def in_coroutine(n: int) -> None:
        for number in range(50):
            print(n, number)
            await asyncio.sleep(0)

    async with bench.working():
        jobs = [await bench.submit(in_thread if n < 3 else in_coroutine, {"n": n}) for n in range(6)]
        for n, job in enumerate(jobs):
            run = await bench.succeeded(job)
            assert [line.text for line in await kept(bench, run.run_id)] == [f"{n} {number}" for number in range(50)]


async def test_a_child_process_and_a_command_are_heard(pool: Pool, settings: Settings, operations: Operations) -> None:
    settings = settings.model_copy(update={"allow_commands": True, "process_slots": 1})
    bench = Workbench(pool, settings, operations, isolated_tasks.app)
    async with bench.working():
        job = await bench.submit(isolated_tasks.talk, {"word": "tok-1234", "rest": 300}, secret_fields=("word",))
        command = await bench.command(
            "sh", "-c", "echo out; echo err >&2; echo $TOKEN; printf 'no end'", secret_env={"TOKEN": "tok-5678"}
        )
        lines = await kept(bench, (await bench.succeeded(job)).run_id)
        assert said(lines)[:3] == [
            (None, "stdout", "printed ***"),
            ("WARNING", "isolated_tasks", "logged ***"),
            (None, "stderr", "to stderr"),
        ]
        assert [line.text for line in lines[3:]] == [str(number) for number in range(300)]
        run = await bench.succeeded(command)
        by_stream: dict[str, list[str]] = {}
        for line in await kept(bench, run.run_id):
            by_stream.setdefault(line.source, []).append(line.text)
        assert by_stream == {"stdout": ["out", "***", "no end"], "stderr": ["err"]}


async def test_of_a_long_log_beginning_and_end_are_kept(pool: Pool, settings: Settings, operations: Operations) -> None:
    bench = Workbench(pool, settings.model_copy(update={"run_log_bytes": 4096}), operations)

    @bench.app.task()
    async def work() -> None:
        for number in range(1, 1001):
            print(f"line {number:04} " + "x" * 90)
            if number % 300 == 0:
                await asyncio.sleep(keeping.GATHER_SECONDS * 1.5)  # so that several flushes rewrite the end
        print("y" * 100_000)

    async with bench.working():
        run = await bench.succeeded(await bench.submit(work))
        lines = await kept(bench, run.run_id)
    gap = next(line for line in lines if line.left_out)
    assert [line.number for line in lines if line.number < gap.number] == list(range(1, lines.index(gap) + 1))
    assert gap.left_out == gap.number - lines.index(gap) - 1
    assert sum(line.left_out for line in lines) + len(lines) == lines[-1].number
    assert "[…]" in lines[-1].text or set(lines[-1].text) == {"y"}
    assert sum(len(line.text) for line in lines) < 4096 + keeping.MAX_LINE_BYTES


async def test_each_attempt_has_its_lines(bench: Workbench) -> None:
    @bench.app.task(max_retries=2, retry_delay_seconds=0)
    async def work(ctx: Context) -> None:
        print(f"attempt {ctx.attempt}")
        if ctx.attempt < 3:
            raise ValueError

    async with bench.working():
        run = await bench.succeeded(await bench.submit(work))
        assert [(line.attempt, line.text) for line in await kept(bench, run.run_id)] == [
            (n, f"attempt {n}") for n in (1, 2, 3)
        ]
    logs = bench.operations.runs.logs
    assert [line.text for line in (await logs(run.run_id, attempt=2)).items] == ["attempt 2"]
    assert [line.text for line in (await logs(run.run_id, tail=2)).items] == ["attempt 2", "attempt 3"]
    first = await logs(run.run_id, limit=1)
    assert (first.more, first.complete) == (True, False)
    second = await logs(run.run_id, cursor=first.cursor, limit=10)
    assert [line.text for line in second.items] == ["attempt 2", "attempt 3"]
    assert (second.more, second.complete) == (False, True)
    last = await logs(run.run_id, cursor=second.cursor)
    assert (last.items, last.cursor, last.complete) == ([], second.cursor, True)
    at = second.items[1].at
    assert [line.text for line in (await logs(run.run_id, since=at)).items] == ["attempt 3"]
    for wrong in ({"cursor": "x"}, {"attempt": 0}, {"tail": 0}, {"limit": 0}):
        with pytest.raises(InvalidInput):
            await logs(run.run_id, **wrong)
    with pytest.raises(NotFound):
        await logs(run.run_id[:-1] + ("e" if run.run_id.endswith("f") else "f"))


async def test_writing_twice_changes_nothing_and_an_older_end_replaces_no_newer_one(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_lost = 3
    write = run_logs.write
    sent: list[Sequence[run_logs.Part]] = []

    async def losing(store: Any, parts: Sequence[run_logs.Part]) -> None:
        nonlocal answers_lost
        await write(store, parts)
        sent.append(parts)
        if answers_lost:
            answers_lost -= 1
            raise StoreUnavailable("the answer was lost")

    monkeypatch.setattr(run_logs, "write", losing)

    @bench.app.task()
    async def work() -> None:
        for number in range(2000):
            print(f"{number} " + "x" * 60)
            if number % 500 == 0:
                await asyncio.sleep(0.3)

    async with bench.working():
        run = await bench.succeeded(await bench.submit(work))
        before = await kept(bench, run.run_id)
    assert before[-1].number == 2000
    for parts in sent:  # as an older process would that wakes up now
        await write(bench.pool, parts)
    assert (await bench.operations.runs.logs(run.run_id)).items == before


async def test_a_store_that_is_away_holds_no_run_up_and_memory_is_bounded(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = True
    write = run_logs.write

    async def failing(store: Any, parts: Sequence[run_logs.Part]) -> None:
        if away:
            raise StoreUnavailable("away")
        await write(store, parts)

    monkeypatch.setattr(run_logs, "write", failing)
    monkeypatch.setattr(keeping, "MAX_HELD_BYTES", 20_000)

    @bench.app.task()
    async def work() -> None:
        for number in range(1000):
            print(f"line {number}")

    async with bench.working() as worker:
        run = await bench.succeeded(await bench.submit(work))
        assert worker._run_logs is not None
        assert worker._run_logs.dropped > 500
        away = False
        await bench.succeeded(await bench.submit(work))
    lines = (await bench.operations.runs.logs(run.run_id)).items
    assert [line.text for line in lines] == [f"line {number}" for number in range(len(lines))]
    assert 50 < len(lines) < 500


@pytest.mark.parametrize(("mode", "number"), [("on", 30), ("auto", 10), ("off", 0)])
async def test_under_load_only_some_runs_are_kept(
    pool: Pool, settings: Settings, operations: Operations, monkeypatch: pytest.MonkeyPatch, mode: str, number: int
) -> None:
    monkeypatch.setattr(keeping, "SAMPLED_PER_SECOND", 10.0)
    bench = Workbench(pool, settings.model_copy(update={"run_logs": mode}), operations)

    @bench.app.task()
    async def work() -> None:
        print("hello")

    jobs = [await bench.submit(work) for _ in range(30)]
    async with bench.working():
        for job in jobs:
            await bench.succeeded(job)
    found = [(await operations.runs.logs((await bench.run_of(job)).run_id)).items for job in jobs]
    assert len([one for one in found if one]) in range(number, number + (3 if mode == "auto" else 1))


async def test_a_silent_run_has_no_row_and_old_lines_are_deleted(bench: Workbench) -> None:
    @bench.app.task()
    async def silent() -> None:
        pass

    @bench.app.task()
    async def loud() -> None:
        print("hello")

    async with bench.working():
        quiet = await bench.succeeded(await bench.submit(silent))
        run = await bench.succeeded(await bench.submit(loud))
        assert await kept(bench, run.run_id)
        assert not await kept(bench, quiet.run_id)
    tidier = Tidier(
        bench.pool, ledger_retention_seconds=3600, audit_retention_seconds=3600, run_log_retention_seconds=3600
    )
    await tidier.work()
    assert (await bench.operations.runs.logs(run.run_id)).items
    tidier = Tidier(
        bench.pool, ledger_retention_seconds=3600, audit_retention_seconds=3600, run_log_retention_seconds=0
    )
    await tidier.work()
    assert not (await bench.operations.runs.logs(run.run_id)).items


async def test_tenants_are_kept_apart(bench: Workbench, operations: Operations, pool: Pool, settings: Settings) -> None:
    from duly.operations import StoreOperations

    app: Duly = bench.app

    @app.task()
    async def loud() -> None:
        print("hello")

    async with bench.working():
        run = await bench.succeeded(await bench.submit(loud))
    other = (await StoreOperations.open(pool, settings)).for_tenant("other")
    with pytest.raises(NotFound):
        await other.runs.logs(run.run_id)
