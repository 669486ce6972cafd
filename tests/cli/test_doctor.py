"""`duly doctor`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from duly.model import Declarer, JobRequest
from duly.operations import Operations
from duly.store import cluster
from duly.store.pool import Pool
from harness.commands import Ended, Process

Run = Callable[..., Ended]
Start = Callable[..., Process]


def test_doctor_fails_on_an_empty_database_and_says_what_to_do(duly: Run, empty_url: str) -> None:
    ended = duly("--database-url", empty_url, "doctor")
    assert ended.code == 1
    assert ended.err == ""
    assert "duly migrate" in ended.out
    document = duly("--database-url", empty_url, "doctor", "--json").document
    assert document["ok"] is False
    assert {check["name"]: check["status"] for check in document["checks"]} == {
        "heartbeat": "ok", "zones": "ok", "files": "ok", "database": "ok", "schema": "fail",
    }  # fmt: skip


def test_doctor_warns_of_what_lies_open_to_others(duly: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> dict[str, tuple[str, str]]:
        checks = duly("--database-url", "postgresql://duly@127.0.0.1:1/duly", "doctor", "--json").document["checks"]
        return {check["name"]: (check["status"], check["message"]) for check in checks}

    home = tmp_path / "home"
    monkeypatch.setenv("DULY_HOME", str(home))
    assert told()["files"][0] == "ok"
    home.mkdir(mode=0o700)
    (key := home / "api.key").write_text(f"duly_local_{'0' * 64}\n")
    key.chmod(0o600)
    assert told()["files"] == ("ok", f"only this user can write to {home}")
    key.chmod(0o644)
    assert told()["files"] == ("warn", f"{key} could be read by others (mode 644)")
    home.chmod(0o777)
    assert "chmod go-w" in told()["files"][1]
    assert "commands" not in told()
    monkeypatch.setenv("DULY_ALLOW_COMMANDS", "true")
    status, message = told()["commands"]
    assert (status, "--command-user" in message) == (("warn", True) if os.geteuid() == 0 else ("ok", False))


def test_doctor_fails_where_nothing_answers(duly: Run) -> None:
    document = duly("--database-url", "postgresql://duly@127.0.0.1:1/duly", "doctor", "--json").document
    assert document["checks"][-1]["name"] == "database"
    assert document["checks"][-1]["status"] == "fail"
    assert "cannot be reached" in document["checks"][-1]["message"]


def test_doctor_fails_while_nobody_schedules_and_nobody_works(duly: Run) -> None:
    ended = duly("doctor", "--json")
    assert ended.code == 1
    told = {check["name"]: check for check in ended.document["checks"]}
    assert {name for name, check in told.items() if check["status"] == "fail"} == {"shards", "workers"}
    assert "duly scheduler" in told["shards"]["message"]
    assert "duly worker" in told["workers"]["message"]


def test_doctor_passes_with_a_scheduler_and_a_worker_and_status_shows_them(duly: Run, start: Start) -> None:
    start("scheduler").wait_for("leading 64 of 64 shards")
    start("worker", "--app", "tasks_of_test:app").wait_for("worker .* is running")
    ended = duly("doctor")
    assert ended.code == 0, ended.out
    # The server of the tests is faster than it is safe.
    assert [line for line in ended.out.splitlines() if not line.startswith(("ok ", "warn  durability"))] == []
    assert "2 sessions of Duly listen" in ended.out

    document = duly("status", "--json").document
    assert {node["kind"]: (node["alive"], node["shards"]) for node in document["nodes"]} == {
        "scheduler": (True, 64),
        "worker": (True, 0),
    }
    assert document["nodes"][1]["info"]["queues"] == ["default", "reports"]
    assert len(document["shards"]) == 64
    assert {(shard["alive"], shard["epoch"]) for shard in document["shards"]} == {(True, 1)}
    assert document["counts"]["overdue"] == 0
    shown = duly("status").out
    assert "64 of 64 led" in shown
    assert "default, reports" in shown

    assert duly("submit", "greet", "--queue", "nobody-serves").code == 0
    warned = duly("doctor", "--json")
    assert warned.code == 0, "a warning is no failure"
    warnings = {check["name"]: check["message"] for check in warned.document["checks"] if check["status"] == "warn"}
    assert warnings.keys() == {"durability", "runnable"}
    message = warnings["runnable"]
    assert message.startswith("1 waiting run of queue 'nobody-serves' (such as 'greet', ")
    assert "a live worker has the task 'greet', but only for the queues default, reports;" in message
    assert "start one with --queue nobody-serves" in message
    assert "start one with --queue nobody-serves" in " ".join(duly("status").out.split())


async def test_status_and_doctor_tell_of_threads_that_hang(start: Start, pool: Pool) -> None:
    info = {"queues": ["default"], "concurrency": 100, "hanging_threads": 3, "threads": 64}
    await cluster.join(
        pool, node_id=uuid4(), kind="worker", name="stuck", version="0", lease_seconds=60, info=info
    )  # fmt: skip
    status, doctor = start("status"), start("doctor")
    status.end()
    doctor.end()
    assert "0 of 100, 3 hang" in status.said
    assert "stuck: 3 of 64" in doctor.said


async def test_doctor_names_a_cancelled_job_that_is_still_declared(
    start: Start, pool: Pool, operations: Operations
) -> None:
    request = JobRequest("digest", schedule="0 9 * * *", dedupe_key="declared:digest")
    by = Declarer("shop", "1", "1", frozenset({"declared:digest"}))
    (declared,) = await operations.declare_all([request], by)
    await operations.jobs.cancel(str(declared.job_id))
    doctor = start("doctor")
    doctor.end()
    assert "is declared by the code but cancelled" not in doctor.said  # no live worker declares it
    info = {"queues": ["default"], "concurrency": 1, "app": by.info("default")}
    await cluster.join(
        pool, node_id=uuid4(), kind="worker", name="w", version="0", lease_seconds=60, info=info
    )  # fmt: skip
    doctor = start("doctor")
    doctor.end()
    said = " ".join(doctor.said.split())
    assert "job 'digest' is declared by the code but cancelled" in said
    assert f"duly job resume {declared.job_id}" in said


async def test_doctor_fails_when_the_stores_clock_was_moved_or_partitions_ran_out(
    database_url: str, start: Start
) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute("update duly.clock set shift = interval '30 days'")
    await connection.close()
    process = start("doctor")
    assert process.end() == 1
    assert "clock was stopped or moved" in process.said
    assert "partitions" in process.said
    assert "less than a day ahead" in process.said


async def test_doctor_names_schedulers_with_another_coordinator(start: Start, pool: Pool) -> None:
    await cluster.join(
        pool, node_id=uuid4(), kind="scheduler", name="n", version="0", lease_seconds=60,
        info={"coordinator": "postgres-advisory"},
    )  # fmt: skip
    process = start("doctor")
    assert process.end() == 1
    assert "live schedulers use postgres-advisory" in process.said


def test_doctor_says_that_the_registry_is_away(duly: Run, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DULY_COORDINATOR", "etcd://127.0.0.1:1")
    checks = duly("--database-url", database_url, "doctor", "--json").document["checks"]
    found = next(check for check in checks if check["name"] == "coordinator")
    assert (found["status"], found["message"]) == (
        "fail", "etcd does not answer at 127.0.0.1:1, so no job fires; start it again",
    )  # fmt: skip
