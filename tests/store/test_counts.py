"""Figures for people are exact counts, or are marked as estimates or lower bounds."""

from __future__ import annotations

import pytest

from duly.store import stores
from duly.store.pool import Pool
from duly.store.statements import statement
from harness.store import put_now


async def test_jobs_are_counted_and_not_guessed_while_they_are_few(pool: Pool) -> None:
    await put_now(pool, 75)
    await pool.query("analyze duly.jobs")
    await put_now(pool, 125)  # not in the planner's statistics
    await put_now(pool, 10, tenant="acme")
    whole = await stores.counts(pool)
    assert (whole.jobs, whole.jobs_estimated, whole.queued, whole.at_least) == (210, False, 210, ())
    ours = await stores.tenant_counts(pool, tenant="default")
    assert (ours.jobs, ours.jobs_estimated, ours.queued, ours.at_least) == (200, False, 200, ())
    theirs = await stores.tenant_counts(pool, tenant="acme")
    assert (theirs.jobs, theirs.jobs_estimated, theirs.queued) == (10, False, 10)
    nobody = await stores.tenant_counts(pool, tenant="nobody")
    assert (nobody.jobs, nobody.queued, nobody.at_least) == (0, 0, ())


async def test_what_is_more_than_was_counted_says_so(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MAX_JOBS_COUNTED", 20)
    monkeypatch.setattr(stores, "MAX_COUNTED", 30)
    monkeypatch.setattr(stores, "_MAX_TENANT_COUNTED", 30)
    await put_now(pool, 400)
    await put_now(pool, 50, tenant="acme")
    await pool.query("analyze duly.jobs")
    whole = await stores.counts(pool)
    assert (whole.jobs, whole.jobs_estimated) == (450, True)
    assert (whole.queued, whole.at_least) == (30, ("queued",))
    ours = await stores.tenant_counts(pool, tenant="default")
    assert (ours.jobs, ours.jobs_estimated) == (400, True)
    assert ours.at_least == ("queued", "retrying", "waiting")
    theirs = await stores.tenant_counts(pool, tenant="acme")
    assert (theirs.jobs, theirs.jobs_estimated) == (21, False)
    assert "jobs" in theirs.at_least


async def test_counting_those_that_retry_does_not_read_those_that_wait_in_the_queue(pool: Pool) -> None:
    await put_now(pool, 2_000)
    await pool.query("analyze duly.runs")
    rows = await pool.query("explain (analyze, costs off, timing off) " + statement("stores/counts"), 100_000, 10_000)
    plan = "\n".join(row[0] for row in rows)
    assert "runs_retrying" in plan
    assert "Rows Removed by Filter" not in plan
