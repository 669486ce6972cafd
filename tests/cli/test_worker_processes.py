"""`duly worker --processes`, queue weights and --allow-commands, as real processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from harness.commands import PATIENCE, Ended, Process
from harness.pids import children_of, is_alive, wait_until_gone

Run = Callable[..., Ended]
Start = Callable[..., Process]
APP = ("--app", "tasks_of_test:app")


def until(holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def workers(duly: Run) -> list[dict[str, Any]]:
    nodes = duly("status", "--json").document["nodes"]
    return [node for node in nodes if node["kind"] == "worker" and node["alive"]]


def children(process: Process) -> set[int]:
    return {int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()}


def statuses(duly: Run, job: str) -> list[str]:
    return [run["status"] for run in duly("job", "runs", job, "--json").lines]


def submit(duly: Run, *arguments: str) -> str:
    ended = duly("submit", *arguments)
    assert ended.code == 0, ended.err
    return ended.out.split()[0]


def supervising(start: Start, count: int, *arguments: str) -> Process:
    supervisor = start("worker", *APP, "--processes", str(count), *arguments)
    for _ in range(count):
        supervisor.wait_for("worker .* is running")
    return supervisor


def test_a_killed_worker_process_is_replaced_and_every_run_ends(duly: Run, start: Start) -> None:
    supervisor = supervising(start, 3, "--concurrency", "2")
    before = children(supervisor)
    assert len(before) == 3
    assert len(workers(duly)) == 3
    jobs = [submit(duly, "slow", "--payload", '{"seconds": 0.5}') for _ in range(6)]
    killed = int(supervisor.wait_for(r"slow began in (\d+)")[1])
    os.kill(killed, signal.SIGKILL)
    told = supervisor.wait_for(r"(worker \d of 3) ended unexpectedly \(killed by SIGKILL\); starting another")
    assert told[1]
    until(lambda: len(children(supervisor)) == 3 and killed not in children(supervisor))
    # No scheduler, whose rescue would take them back: the supervisor gives back what the killed process held.
    until(lambda: all(statuses(duly, job_id) == ["succeeded"] for job_id in jobs), seconds=60)
    until(lambda: len(workers(duly)) == 3)
    supervisor.signal(signal.SIGTERM)
    assert supervisor.end() == 0, supervisor.said
    assert "Traceback" not in supervisor.said
    assert not any(Path(f"/proc/{pid}").exists() for pid in before)


LONG_LEASE = {"DULY_WORKER_LEASE_SECONDS": "120", "DULY_HEARTBEAT_SECONDS": "1"}


def test_the_runs_of_a_killed_process_start_again_at_once(duly: Run, start: Start) -> None:
    """The supervisor saw it die and gives them back: neither the lease nor a scheduler is waited for."""
    supervisor = start("worker", *APP, "--processes", "2", "--concurrency", "10", **LONG_LEASE)
    for _ in range(2):
        supervisor.wait_for("worker .* is running")
    jobs = [submit(duly, "slow", "--payload", '{"seconds": 600}') for _ in range(4)]
    # One that holds runs: all four may be with the other one.
    victim, *_ = [int(supervisor.wait_for(r"slow began in (\d+)")[1]) for _ in jobs]
    os.kill(victim, signal.SIGKILL)
    killed_at = time.monotonic()
    supervisor.wait_for("slow began")
    again = time.monotonic() - killed_at
    print(f"started again after {again:.2f} s")
    assert again < 1.0


@pytest.mark.parametrize("ending", [signal.SIGSEGV, signal.SIGABRT])
def test_a_crashed_process_gives_back_as_well(duly: Run, start: Start, ending: signal.Signals) -> None:
    supervisor = start("worker", *APP, "--processes", "1", **LONG_LEASE)
    supervisor.wait_for("worker .* is running")
    submit(duly, "slow", "--payload", '{"seconds": 600}')
    supervisor.wait_for("slow began")
    (victim,) = children(supervisor)
    os.kill(victim, ending)
    supervisor.wait_for("slow began", seconds=15)


def test_a_program_of_a_killed_worker_has_ended_before_its_run_starts_again(
    duly: Run, start: Start, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    script = f'echo "$$" >> {log}; sleep 600'
    supervisor = start("worker", "--processes", "2", "--allow-commands", **LONG_LEASE)
    for _ in range(2):
        supervisor.wait_for("worker .* is running")
    submit(duly, "--command", "--", "/bin/sh", "-c", script)
    until(lambda: log.exists() and len(log.read_text().split()) == 1)
    (first,) = log.read_text().split()
    # worker → guard → program
    (holder,) = (pid for pid in children(supervisor) for guard in children_of(pid) if int(first) in children_of(guard))
    os.kill(holder, signal.SIGKILL)
    until(lambda: len(log.read_text().split()) == 2)
    assert not is_alive(int(first))


def test_a_single_worker_process_that_crashes_is_started_again(duly: Run, start: Start) -> None:
    supervisor = supervising(start, 1)
    (before,) = children(supervisor)
    submit(duly, "crash", "--max-retries", "0")
    supervisor.wait_for(r"the worker ended unexpectedly \(.*7.*\); starting another")
    supervisor.wait_for("worker .* is running")
    assert before not in children(supervisor)
    supervisor.signal(signal.SIGTERM)
    assert supervisor.end() == 0, supervisor.said


def test_the_first_signal_lets_handlers_of_all_processes_finish(duly: Run, start: Start) -> None:
    supervisor = supervising(start, 2, "--concurrency", "1")
    jobs = [submit(duly, "slow", "--payload", '{"seconds": 1.5}') for _ in range(2)]
    for _ in jobs:
        supervisor.wait_for("slow began")
    supervisor.press_ctrl_c()
    assert supervisor.end() == 0, supervisor.said
    assert [statuses(duly, job_id) for job_id in jobs] == [["succeeded"]] * 2
    assert len(re.findall("slow +succeeded", supervisor.said)) == 2


def test_the_second_signal_ends_all_processes_now(duly: Run, start: Start) -> None:
    supervisor = supervising(start, 2, "--concurrency", "1")
    pids = children(supervisor)
    jobs = [submit(duly, "stubborn") for _ in range(2)]
    for _ in jobs:
        supervisor.wait_for("stubborn began")
    supervisor.press_ctrl_c()
    supervisor.wait_for("stopping")
    supervisor.press_ctrl_c()
    assert supervisor.end(15) == 130, supervisor.said
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert [statuses(duly, job_id) for job_id in jobs] == [["queued"]] * 2


def test_killing_the_supervisor_leaves_no_worker_behind(duly: Run, start: Start, environment: dict[str, str]) -> None:
    supervisor = supervising(start, 2)
    supervisor.signal(signal.SIGKILL)
    wait_until_gone(environment["DULY_DATABASE_URL"])


def test_the_supervisor_itself_holds_no_connection(start: Start, environment: dict[str, str]) -> None:
    async def connections() -> int:
        connection = await asyncpg.connect(environment["DULY_DATABASE_URL"])
        try:
            others = "datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"
            return int(await connection.fetchval(f"select count(*) from pg_stat_activity where {others}"))
        finally:
            await connection.close()

    supervisor = supervising(start, 2)
    assert asyncio.run(connections()) > 0
    supervisor.signal(signal.SIGSTOP)
    for pid in children(supervisor):
        os.kill(pid, signal.SIGKILL)
    until(lambda: asyncio.run(connections()) == 0)


def test_queues_and_weights_reach_every_process(duly: Run, start: Start) -> None:
    supervisor = start("worker", *APP, "--processes", "2", "--queue", "reports=3", "--queue", "default")
    for _ in range(2):
        supervisor.wait_for("queues reports=3, default$")
    for worker in workers(duly):
        assert worker["info"]["queues"] == ["reports", "default"]
        assert worker["info"]["weights"] == {"reports": 3, "default": 1}
    supervisor.signal(signal.SIGTERM)
    assert supervisor.end() == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--queue", "reports=0"), ("--queue reports=0", "from 1 to 1000")),
        (("--queue", "reports=1001"), ("--queue reports=1001", "from 1 to 1000")),
        (("--queue", "reports=many"), ("--queue reports=many", "whole number")),
        (("--queue", "reports="), ("--queue reports=", "whole number")),
        (("--queue", "=3"), ("--queue", "name")),
        (("--queue", "a=1", "--queue", "a=2"), ("--queue a=2", "another weight")),
        (("--processes", "0"), ("--processes", "1")),
        (("--processes", "257"), ("--processes", "256")),
    ],
)
def test_a_bad_weight_or_count_is_refused_by_name(
    duly: Run, project: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    ended = duly("worker", *APP, *arguments)
    assert ended.code == 2
    assert len(ended.err.splitlines()) == 1
    for word in words:
        assert word in ended.err


def test_only_a_worker_that_allows_commands_runs_them(duly: Run, start: Start) -> None:
    job_id = submit(duly, "--command", "--", "sh", "-c", "echo attempt $DULY_ATTEMPT; cat")
    closed = start("worker", *APP)
    closed.wait_for("goes back to the queue for another worker")
    closed.signal(signal.SIGTERM)
    assert closed.end() == 0
    supervisor = supervising(start, 2, "--allow-commands")
    until(lambda: statuses(duly, job_id) == ["succeeded"])
    (run,) = duly("job", "runs", job_id, "--json").lines
    assert (run["attempt"], run["result"]["stdout"]) == (1, "attempt 1\n{}")
    supervisor.signal(signal.SIGTERM)
    assert supervisor.end() == 0


def test_the_workers_of_a_supervisor_run_the_programs_of_its_list_only(duly: Run, start: Start) -> None:
    listed = ("--allow-command", "ech*", "--allow-command", "/opt/tools/*")
    # The flag wins over the environment of the workers, too.
    supervisor = start("worker", "--processes", "1", *listed, DULY_ALLOW_COMMANDS="true")
    supervisor.wait_for(r"only HTTP endpoints and commands \(ech\*, /opt/tools/\*\)")
    assert workers(duly)[0]["info"]["commands"] == ["ech*", "/opt/tools/*"]
    refused = submit(duly, "--command", "--", "id")
    job = submit(duly, "--command", "--", "echo", "here")
    until(lambda: statuses(duly, job) == ["succeeded"])
    supervisor.wait_for("goes back to the queue for another worker: this worker does not run 'id'")
    assert statuses(duly, refused) == ["queued"]


def test_commands_are_all_or_those_of_a_list(start: Start) -> None:
    refused = start("worker", "--allow-commands", "--allow-command", "id")
    assert refused.end() == 2
    assert "give one of them" in refused.said
