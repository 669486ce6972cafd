"""The notices of the live page, in a real browser: in words, with the next step, and as text whatever they contain."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest

from duly.model import Declarer, JobRequest
from duly.operations import Operations
from duly.store import cluster
from duly.store.pool import Pool
from harness import browser
from harness.commands import Process

Start = Callable[..., Process]

API = r"its live page at (http://127\.0\.0\.1:(\d+))/#key=(duly_local_[0-9a-f]{64})$"
MARKUP = "<img src=x onerror=document.title='owned'>"


async def work(pool: Pool, *tasks: str, **info: object) -> None:
    said = {"queues": ["default"], "tasks": tasks, **info}
    await cluster.join(
        pool, node_id=uuid4(), kind="worker", name="w", version="0", lease_seconds=600, info=said
    )  # fmt: skip


@pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))
async def test_the_page_names_jobs_that_nobody_can_run_and_declared_jobs_that_rest(
    start: Start, pool: Pool, operations: Operations
) -> None:
    by = Declarer("shop", "1", "1", frozenset({"declared:digest"}))
    declared = JobRequest("digest", schedule="0 9 * * *", dedupe_key="declared:digest")
    (digest,) = await operations.declare_all([declared], by)
    await operations.jobs.cancel(str(digest.job_id))
    stuck = JobRequest(MARKUP, name=MARKUP, schedule="every 1h", queue=MARKUP)
    await operations.submit(stuck, allow_unknown_handler=True)
    await work(pool, "digest", app=by.info("default"))
    address, _, key = start("api", "--port", "0").wait_for(API).groups()
    with browser.Browser(f"{address}/#key={key}") as tab:
        tab.until("document.querySelectorAll('#notices li').length === 2")
        shown = tab.ask("document.getElementById('notices-section').innerText")
        assert tab.ask("document.getElementById('notices-section').checkVisibility()") is True
        assert f"no live worker has the task {MARKUP!r}" in shown
        assert "Next step: start one whose app has it: duly worker --app module:app" in shown
        assert "job 'digest' is declared by the code but cancelled, so it does not run." in shown
        assert f"Next step: to bring it back: duly job resume {digest.job_id}" in shown
        assert tab.ask("document.querySelectorAll('#notices img').length") == 0
        assert tab.ask("document.title") == "Duly"
        # They go when there is nothing to say.
        await operations.jobs.resume(str(digest.job_id))
        await work(pool, MARKUP, queues=[MARKUP])
        tab.until("document.getElementById('notices-section').hidden")
        assert tab.ask("document.getElementById('notices').children.length") == 0
