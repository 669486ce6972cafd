"""Tasks with isolation="process", in real child processes of a worker: their surroundings, errors and end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import isolated_tasks
from duly import Context, Duly, InvalidInput
from duly.config import Settings
from duly.operations import Operations
from duly.store.pool import Pool
from duly.worker.processes import children
from harness.commands import Process
from harness.pids import children_of, gone, is_alive, numbers_in, open_pipes
from harness.store import count
from harness.waiting import eventually
from harness.worker import Workbench, turns


@pytest.fixture
async def bench(pool: Pool, settings: Settings, operations: Operations) -> Workbench:
    return Workbench(pool, settings.model_copy(update={"process_slots": 2}), operations, isolated_tasks.app)


async def result_of(bench: Workbench, task: str, payload: Any = None, **options: Any) -> Any:
    run = await bench.end_of(await bench.submit(task, payload, **options))
    assert run.status == "succeeded", run.error
    return run.result


async def test_a_handler_in_a_child_finds_what_one_in_a_thread_does(bench: Workbench) -> None:
    options: dict[str, Any] = {
        "name": "looking", "payload_ref": "s3://b/k", "idempotency_key_template": "{{name}} {{job_id}}",
    }  # fmt: skip
    async with bench.working():
        there = await result_of(bench, "look", {"a": [1, "ü", None]}, **options)
        here = await result_of(bench, "look_here", **options)
    assert there.pop("payload") == {"a": [1, "ü", None]}
    assert here.pop("payload") == {}
    assert there.pop("pid") != here.pop("pid") == os.getpid()
    for one_of_its_own in ("job_id", "run_id", "scheduled_at", "fencing_token", "trace_id", "idempotency_key"):
        assert len(there.pop(one_of_its_own)) == len(here.pop(one_of_its_own))
    assert there == here
    assert (there["job_name"], there["attempt"], there["missed"]) == ("looking", 1, False)


async def test_a_child_loads_neither_a_database_driver_nor_the_store(bench: Workbench) -> None:
    async with bench.working():
        loaded = await result_of(bench, "loaded")
    assert {"isolated_tasks", "duly.app", "duly.worker.execution"} <= set(loaded)
    assert [name for name in loaded if name.startswith(("asyncpg", "duly.store", "duly.operations"))] == []


async def test_children_are_used_again_and_async_handlers_keep_their_loop(bench: Workbench) -> None:
    async with bench.working():
        first, second = [await result_of(bench, "look_async") for _ in range(2)]
        third = await result_of(bench, "look")
    assert first["pid"] == second["pid"] == third["pid"]
    assert (first["loops"], second["loops"]) == (1, 1)


def wearing(bench: Workbench, **limits: Any) -> Workbench:
    return Workbench(bench.pool, bench.settings.model_copy(update=limits), bench.operations, isolated_tasks.app)


async def test_a_child_is_replaced_after_its_number_of_runs(bench: Workbench) -> None:
    bench = wearing(bench, worker_max_runs=2)
    async with bench.working():
        pids = [(await result_of(bench, "look"))["pid"] for _ in range(5)]
        assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]
        await gone(pids[0], pids[2])
        assert is_alive(pids[4])


async def test_a_child_that_leaks_is_replaced_between_two_runs(bench: Workbench) -> None:
    bench = wearing(bench, worker_max_memory="200MB")
    async with bench.working():
        pids = [await result_of(bench, "leak", {"megabytes": 60}) for _ in range(5)]
    # Each run ended, so the limit struck after it; two or three of them fit beside the interpreter.
    assert pids[0] == pids[1]
    assert len(set(pids)) == 2
    assert not is_alive(pids[0])


async def test_children_are_asked_for_their_memory_only_if_there_is_a_limit(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    send = children._Child._send

    def noted(child: children._Child, message: Any) -> None:
        sent.append(message)
        send(child, message)

    monkeypatch.setattr(children._Child, "_send", noted)
    for worker in (bench, wearing(bench, worker_max_memory="1GB")):
        async with worker.working():
            await result_of(worker, "look")
    assert ["weigh" in message for message in sent if "call" in message] == [False, True]


async def test_what_a_handler_prints_goes_to_standard_error_and_its_input_is_empty(
    bench: Workbench, capfd: pytest.CaptureFixture[str]
) -> None:
    async with bench.working():
        assert await result_of(bench, "speak") == ["", ""]
        assert (await result_of(bench, "look"))["job_name"] == "look"  # no printed text was taken for a frame
    told = capfd.readouterr()
    for line in ("a line of the handler's", "and another", "straight to descriptor 1", "of a program"):
        assert line in told.err
    assert told.out == ""


async def test_progress_of_a_child_is_seen_while_it_runs(bench: Workbench, tmp_path: Path) -> None:
    file = tmp_path / "go on"
    job_id = await bench.submit("step", {"file": str(file)})
    async with bench.working():
        # The second report came within the pause after the first: it must be written without a third one.
        await eventually(lambda: told(bench.pool, "a quarter"))
        file.touch()
        await bench.end_of(job_id)


async def told(pool: Pool, note: str) -> bool:
    return await count(pool, "progress", "note = $1 and fraction = 0.25", note) == 1


@pytest.mark.parametrize(
    ("how", "ending", "error", "words"),
    [
        ("value", ("dead", 2), "ValueError", "not\ufffd good"),
        ("permanent", ("dead", 1), "Permanent", "never again"),
        ("own", ("dead", 1), "isolated_tasks.OfOurOwn", "never again"),
        ("later", ("dead", 2), "duly.errors.RetryAfter", "in a moment"),
        ("exit", ("dead", 2), "SystemExit", "enough"),
        ("die", ("dead", 2), "ProcessDied", "exit code 7"),
        ("crash", ("dead", 2), "ProcessDied", "killed by SIGSEGV"),
        ("nonsense", ("dead", 2), "ProcessDied", "wrote into the pipe"),
        ("transaction", ("dead", 2), "RuntimeError", "ctx.transaction() does not work in a child process"),
    ],
)
async def test_errors_of_children_mean_what_they_mean_elsewhere(
    bench: Workbench, how: str, ending: tuple[str, int], error: str, words: str
) -> None:
    async with bench.working():
        run = await bench.end_of(await bench.submit("fail", {"how": how}))
        # The worker goes on, whatever happened to that child.
        assert (await result_of(bench, "look"))["attempt"] == 1
    assert (run.status, run.attempt) == ending
    assert len(run.attempts) == run.attempt
    assert run.error is not None
    assert run.error.type == error
    assert words in run.error.message
    if how in ("value", "own", "later"):
        assert "isolated_tasks.py" in (run.error.traceback or "")
    assert await count(bench.pool, "dead_letters") == 1


async def test_a_snooze_counts_no_attempt_and_results_that_json_cannot_say_are_texts(bench: Workbench) -> None:
    async with bench.working():
        assert await result_of(bench, "fail", {"how": "snooze"}) == 1
        assert Path("snoozed").exists()
        assert (await result_of(bench, "fail", {"how": "unspeakable"}))["nan"] == "nan"


async def test_a_handler_that_holds_the_interpreters_lock_is_killed_with_its_programs(
    bench: Workbench, tmp_path: Path
) -> None:
    file = tmp_path / "pids"
    async with bench.working():
        job_id = await bench.submit("hang", {"file": str(file), "programs": 2})
        pids = await numbers_in(file, 3)
        assert all(is_alive(pid) for pid in pids)
        run = await bench.end_of(job_id)
        assert run.error is not None
        assert run.error.type == "timeout"
        assert [pid for pid in pids if is_alive(pid)] == []
        assert (await result_of(bench, "look"))["pid"] not in pids


@pytest.mark.parametrize("task", ["tidy", "attentive"])
async def test_a_handler_that_listens_may_tidy_up_before_its_child_is_killed(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    monkeypatch.setattr(children, "CANCEL_SECONDS", 4)  # long enough for a busy machine
    file = tmp_path / "said"
    async with bench.working():
        job_id = await bench.submit(task, {"file": str(file)})
        await eventually(lambda: file.exists() and file.read_text() == "begun")
        await bench.operations.jobs.cancel(job_id, running=True)
        await bench.end_of(job_id, "cancelled")
        said, pid = file.read_text().split()
        assert said == "tidied"
        # The handler ended in time, so its child is used again.
        assert (await result_of(bench, "look"))["pid"] == int(pid)


async def test_runs_beyond_the_slots_wait_and_then_go_back_to_the_queue(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "MAX_CHILD_WAIT_SECONDS", 0.5)
    bench.settings = bench.settings.model_copy(update={"process_slots": 1})
    files = [tmp_path / "first", tmp_path / "second"]
    async with bench.working():
        jobs = [await bench.submit("wait_for", {"file": str(file)}) for file in files]

        async def one_is_back() -> bool:
            rows = await bench.pool.query("select attempt from duly.runs where run_at > duly.now()")
            return [row["attempt"] for row in rows] == [0]

        await eventually(one_is_back)
        for file in files:
            file.touch()
        runs = [await bench.end_of(job_id) for job_id in jobs]
    assert [(run.status, run.attempt) for run in runs] == [("succeeded", 1)] * 2
    assert runs[0].result == runs[1].result  # both ran in the child of the only slot


async def test_idle_children_end_and_nothing_is_left_open(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "IDLE_SECONDS", 0.2)
    async with bench.working():
        pid = (await result_of(bench, "look"))["pid"]
        await gone(pid)
        await turns()
        before = open_pipes()
        jobs = [await bench.submit("fail", {"how": how}) for how in ("die", "value", "crash", "permanent")]
        for job_id in jobs:
            await bench.end_of(job_id)
        await eventually(lambda: open_pipes() <= before)


async def test_the_worker_takes_its_children_with_it(bench: Workbench) -> None:
    async with bench.working():
        pid = (await result_of(bench, "look"))["pid"]
        assert is_alive(pid)
    assert not is_alive(pid)


async def test_a_wrapper_around_a_task_is_no_part_of_it_in_a_child_either(bench: Workbench) -> None:
    async with bench.working():
        assert await result_of(bench, "wrapped") == 21


async def test_a_function_that_no_child_can_import_is_refused_when_the_worker_starts(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inner(ctx: Context) -> None: ...

    async def refused(function: Any) -> str:
        app = Duly(settings=bench.settings)
        app.task(name="mine", isolation="process")(function)
        with pytest.raises(InvalidInput, match="isolation: task mine cannot have 'process'") as error:
            async with Workbench(bench.pool, bench.settings, bench.operations, app).working():
                pass
        return str(error.value)

    assert "inside another function" in await refused(inner)
    assert "inside another function" in await refused(lambda: None)
    monkeypatch.setattr(isolated_tasks.speak, "__module__", "__main__")
    assert "move it to a module" in await refused(isolated_tasks.speak)
    monkeypatch.setattr(isolated_tasks.step, "__qualname__", "look")
    assert "something else" in await refused(isolated_tasks.step)


def test_children_do_not_outlive_a_worker_that_was_killed(
    settings: Settings, tmp_path: Path, database_url: str
) -> None:
    file = tmp_path / "pids"
    path = os.pathsep.join(filter(None, [str(Path(isolated_tasks.__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = {"DULY_DATABASE_URL": database_url, "DULY_POLL_SECONDS": "0.2", "PYTHONPATH": path}
    payload = f'{{"file": "{file}", "programs": 2}}'
    submitted = Process(
        ("submit", "hang_on", "--app", "isolated_tasks:app", "--payload", payload), environment, tmp_path
    )
    assert submitted.end() == 0, submitted.said
    worker = Process(("worker", "--app", "isolated_tasks:app"), environment, tmp_path)
    try:
        pids = asyncio.run(numbers_in(file, 3))
        assert all(is_alive(pid) for pid in pids)
        (guard,) = children_of(worker.pid)
        worker.signal(signal.SIGKILL)
        asyncio.run(gone(guard, *pids))
    finally:
        submitted.close()
        worker.close()


@pytest.fixture(autouse=True)
async def _nothing_is_left_behind() -> AsyncIterator[None]:
    before = set(children_of(os.getpid()))
    yield
    assert set(children_of(os.getpid())) <= before
