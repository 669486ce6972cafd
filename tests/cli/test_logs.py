"""What a worker process logs while handlers run: every record names its run, in coroutines, threads and children."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from duly.model import JobRequest, Policy
from duly.operations import Operations
from harness.commands import Process
from harness.waiting import eventually

TASKS = """
import asyncio
import logging
import logging.config

from duly import Duly

app = Duly()
log = logging.getLogger("shop.orders")


@app.task(secret_fields=["token"])
async def coroutine(token: str) -> None:
    await asyncio.sleep(0)
    log.info("in a coroutine with %s", token, extra={"amount": 7})


@app.task(secret_fields=["token"])
def thread(ctx, token: str) -> None:
    ctx.log.info("in a thread with %s", token)


@app.task(isolation="process", secret_fields=["token"])
def child(token: str) -> None:
    log.info("in a child with %s", token)
"""


@pytest.mark.parametrize("log_format", ["json", "text"])
async def test_every_record_of_a_handler_names_its_run(
    start: Callable[..., Process], project: Path, operations: Operations, log_format: str
) -> None:
    (project / "shop_jobs.py").write_text(TASKS)
    worker = start("--log-format", log_format, "worker", "--app", "shop_jobs:app", "--concurrency", "3")
    jobs = {}
    for task in ("coroutine", "thread", "child"):
        request = JobRequest(task, payload={"token": "hunter22"}, policy=Policy(secret_fields=("token",)))
        jobs[task] = str((await operations.submit(request, allow_unknown_handler=True)).job_id)
    for _ in jobs:
        worker.wait_for("in a (coroutine|thread|child)")

    async def ended() -> bool:
        return all([(await operations.runs.page(job)).items[0].status == "succeeded" for job in jobs.values()])

    await eventually(ended, seconds=30)
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0
    assert "hunter22" not in worker.said
    for task, job_id in jobs.items():
        line = next(line for line in worker.output if f"in a {task} with ***" in line)
        run = (await operations.runs.page(job_id)).items[0]
        if log_format == "text":
            assert f"[job='{task}' run={run.run_id} attempt=1 shard=" in line
            continue
        said = json.loads(line)
        assert (said["job_id"], said["run_id"], said["job"]) == (job_id, run.run_id, task)
        assert (said["attempt"], said["level"]) == (1, "INFO")
        assert isinstance(said["shard"], int)
        assert said["node"]
        assert len(said["trace_id"]) == 32
        assert said.get("fields") == ({"amount": 7} if task == "coroutine" else None)
    if log_format == "json":
        # Every line, also those that the worker prints for each run that ends.
        said = [json.loads(line) for line in worker.output]
        assert {line["job_id"] for line in said if line["logger"] == "duly.runs"} == set(jobs.values())


async def test_logging_that_the_application_configures_stays_and_can_name_the_run(
    start: Callable[..., Process], project: Path, operations: Operations
) -> None:
    (project / "shop_jobs.py").write_text(
        TASKS
        + """
logging.config.dictConfig({
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"run": {"()": "duly.logs.RunFilter"}},
    "formatters": {"mine": {"format": "MINE %(run_id)s %(attempt)s %(message)s"}},
    "handlers": {"mine": {"class": "logging.StreamHandler", "filters": ["run"], "formatter": "mine"}},
    "root": {"level": "INFO", "handlers": ["mine"]},
})
"""
    )
    worker = start("worker", "--app", "shop_jobs:app", "--quiet")
    job = (await operations.submit(JobRequest("coroutine", payload={"token": "x"}), allow_unknown_handler=True)).job_id
    found = worker.wait_for("^MINE ([0-9a-f-]+) 1 in a coroutine with x$")
    assert found[1] == (await operations.runs.page(str(job))).items[0].run_id
