"""Query plans of the hot statements on a store with 200,000 jobs: index scans, and nothing that grows with the store.

Both the plan for concrete parameters and the generic one are looked at: PostgreSQL switches to the generic plan of a
prepared statement after a few executions.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from conftest import Server
from duly.store.pool import Pool
from duly.store.statements import statement

JOBS = 200_000
BIG = ("jobs", "runs", "history", "attempts")
NOW = datetime.now(UTC).replace(microsecond=0)

_FILL = f"""
insert into duly.jobs (job_id, next_run_at, last_run_at, created_at, updated_at, shard, priority, status, kind, tenant,
    name, queue, handler, schedule, timezone, payload)
select id, '{NOW.isoformat()}'::timestamptz + n * interval '1 second', '{NOW.isoformat()}'::timestamptz, now(), now(),
    duly.shard_of(id, 64), 5, 'active', 'interval', 'default', 'job ' || n, 'default', 'noop', 'every 1h', 'UTC', '{{}}'
from (select duly.new_job_id(now()) as id, n from generate_series(1, {JOBS}) n offset 0) made;
insert into duly.runs (job_id, scheduled_at, run_at, fired_at, shard, priority, state, queue)
select job_id, last_run_at, now() + (row_number() over () - 50000) * interval '1 second', now(), shard,
    (row_number() over () % 10)::smallint, 'queued', 'default'
from duly.jobs limit 100000;
insert into duly.history (job_id, scheduled_at, finished_at, attempt, status)
select job_id, last_run_at - hour * interval '1 hour', now(), 1, 'succeeded'
from duly.jobs cross join generate_series(0, 1) hour offset 100000;
"""


# Analyzes the filled tables, as autovacuum would. An empty partition without statistics keeps the planner careful.
_ANALYZE = """
do $$
declare
    filled regclass;
    there boolean;
begin
    analyze duly.jobs, duly.runs;
    for filled in select inhrelid::regclass from pg_inherits where inhparent = 'duly.history'::regclass loop
        execute format('select exists (select from %s)', filled) into there;
        if there then
            execute format('analyze %s', filled);
        end if;
    end loop;
end
$$
"""


@pytest.fixture(scope="module")
def full_store(server: Server) -> Iterator[str]:
    url = server.database_url("test_plans")

    async def fill() -> None:
        await _execute(server.url, "create database test_plans template template_duly")
        await _execute(url, _FILL, _ANALYZE)

    asyncio.run(fill())
    yield url
    asyncio.run(_execute(server.url, "drop database test_plans with (force)"))


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    for sql in statements:
        await connection.execute(sql)
    await connection.close()


@pytest.fixture
async def full_pool(full_store: str) -> AsyncIterator[Pool]:
    pool = await Pool.connect(full_store)
    yield pool
    await pool.close()


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes_of(child)


async def plans_of(pool: Pool, name: str, *args: Any) -> list[dict[str, Any]]:
    """The plan for these parameters, and the generic one."""
    found = []
    async with pool.transaction() as transaction:
        for options, parameters in (("format json", args), ("generic_plan, format json", ())):
            if parameters:
                rows = await transaction.connection.fetch(f"explain ({options}) {statement(name)}", *parameters)
                text = rows[0][0]
            else:
                # Without parameters only the simple protocol takes the placeholders.
                text = await _simple(transaction.connection, f"explain ({options}) {statement(name)}")
            found.append(json.loads(text)[0]["Plan"])
    return found


async def _simple(connection: Any, sql: str) -> str:
    """`generic_plan` wants placeholders without values, which needs a statement that is not prepared: a DO block."""
    quoted = sql.replace("$plan$", "")
    await connection.execute("create temporary table if not exists explained (plan text) on commit drop")
    await connection.execute(
        f"do $do$ declare line json; begin execute $plan${quoted}$plan$ into line; "
        "insert into explained values (line::text); end $do$"
    )
    text = await connection.fetchval("delete from explained returning plan")
    return str(text)


def assert_index_only_access(plan: dict[str, Any]) -> None:
    for node in nodes_of(plan):
        relation = str(node.get("Relation Name", ""))
        big = any(relation == name or relation.startswith(f"{name}_") for name in BIG)
        if big:
            assert node["Node Type"] != "Seq Scan", f"a sequential scan of {relation}"
        if node["Node Type"] in ("Sort", "Incremental Sort"):
            assert node["Plan Rows"] <= 2_000, f"a sort of {node['Plan Rows']} rows"


async def ids(pool: Pool, count: int) -> list[UUID]:
    rows = await pool.query("select job_id from duly.jobs where shard = 0 order by next_run_at limit $1", count)
    return [row["job_id"] for row in rows]


LANES = (["default"] * 10, list(range(9, -1, -1)), [None] * 10)


@pytest.mark.parametrize("limit", [1, 1000])
async def test_claim_walks_the_lanes_and_never_reads_or_sorts_the_queue(full_pool: Pool, limit: int) -> None:
    for plan in await plans_of(full_pool, "runs/claim", uuid4(), 15.0, limit, *LANES):
        assert_index_only_access(plan)
        kinds = [node["Node Type"] for node in nodes_of(plan)]
        assert "Tid Scan" in kinds
        assert not any("Sort" in kind or "Hash" in kind for kind in kinds)
        lanes = [node for node in nodes_of(plan) if node.get("Index Name") == "runs_lane"]
        assert len(lanes) == 2
        for lane in lanes:
            assert "run_at" in lane["Index Cond"]
            assert "queue" in lane["Index Cond"]
            assert "priority" in lane["Index Cond"]


@pytest.mark.parametrize(("without", "tenants"), [([], ["acme"]), (["elsewhere"], None)])
async def test_a_claim_for_some_runs_walks_the_lanes_and_never_reads_the_queue(
    full_pool: Pool, without: list[str], tenants: list[str] | None
) -> None:
    for plan in await plans_of(full_pool, "runs/claim_served", uuid4(), 15.0, 100, *LANES, without, tenants, 1000):
        assert_index_only_access(plan)
        lanes = [node for node in nodes_of(plan) if node.get("Index Name") == "runs_lane"]
        assert len(lanes) == 3  # how far it looks, what it takes, what comes next
        assert all("run_at" in lane["Index Cond"] and "priority" in lane["Index Cond"] for lane in lanes)


async def test_the_lanes_that_hold_anything_are_found_by_one_descent_each(full_pool: Pool) -> None:
    for plan in await plans_of(full_pool, "runs/lanes", [f"queue {number}" for number in range(1000)]):
        kinds = [node["Node Type"] for node in nodes_of(plan)]
        assert not any("Sort" in kind or kind == "Seq Scan" for kind in kinds)
        lanes = [node for node in nodes_of(plan) if node.get("Index Name") == "runs_lane"]
        assert [node["Node Type"] for node in lanes] == ["Index Only Scan"] * 2
        assert "ROW(queue, priority) > ROW" in lanes[1]["Index Cond"]


async def test_a_claim_planned_on_an_empty_queue_does_not_read_the_whole_queue_when_it_fills(pool: Pool) -> None:
    """A prepared statement keeps its plan, and a worker usually starts on an empty queue."""
    for plan in await plans_of(pool, "runs/claim", uuid4(), 15.0, 1000, *LANES):
        assert_index_only_access(plan)
        assert "Tid Scan" in [node["Node Type"] for node in nodes_of(plan)]


@pytest.mark.parametrize("name", ["runs/requeue", "runs/bury", "runs/expire", "runs/complete"])
async def test_outcomes_planned_on_an_empty_store_go_by_key(pool: Pool, name: str) -> None:
    columns = {
        "runs/complete": ([1], [1], [1], [2], [None], [0], []),
        "runs/requeue": ([1], [1], ["queued"], [0.0], [0], [None], [None], [None], [0]),
        "runs/expire": ([1], [1], [2], [60]),
        "runs/bury": ([1], [1], ["{}"], [1], [2], ["dead"]),
    }
    for plan in await plans_of(pool, name, [uuid4()], *columns[name]):
        assert_index_only_access(plan)


@pytest.mark.parametrize("size", [1, 2000])
async def test_fire_touches_the_jobs_it_names_and_probes_history_once_each(full_pool: Pool, size: int) -> None:
    jobs = await ids(full_pool, size)
    n = len(jobs)
    args: tuple[Any, ...] = (
        0, 1, jobs, [NOW] * n, [NOW] * n, ["skip"] * n, [100] * n,
        jobs, [NOW] * n, [0] * n, [1] * n, [], [], [], [], [], [1] * n,
    )  # fmt: skip
    for plan in await plans_of(full_pool, "fires/fire", *args):
        assert_index_only_access(plan)


@pytest.mark.parametrize("size", [1, 2000])
async def test_a_simple_fire_goes_to_the_rows_it_names(full_pool: Pool, size: int) -> None:
    rows = await full_pool.query("select ctid, xmin, job_id from duly.jobs limit $1", size)
    n = len(rows)
    named = [row["ctid"] for row in rows], [row["xmin"] for row in rows], [row["job_id"] for row in rows]
    shards = [number % 64 for number in range(n)]
    terms = list(range(64)), [1] * 64
    args = (*terms, *named, [NOW] * n, [NOW] * n, [0] * n, shards, [1] * n)
    for plan in await plans_of(full_pool, "fires/on_time", *args):
        assert_index_only_access(plan)
        assert "Tid Scan" in [node["Node Type"] for node in nodes_of(plan)]


@pytest.mark.parametrize("size", [1, 2000])
async def test_reading_due_jobs_goes_by_their_ids(full_pool: Pool, size: int) -> None:
    for plan in await plans_of(full_pool, "fires/due", await ids(full_pool, size)):
        assert_index_only_access(plan)


async def test_looking_at_all_claims_goes_by_an_index(full_pool: Pool) -> None:
    """Thousands of claims come and go between two vacuums: most of the table's pages hold nothing any more."""
    (row,) = await full_pool.query("select prosrc, proconfig from pg_proc where proname = 'claimed_jobs'")
    async with full_pool.transaction() as transaction:
        for setting in row["proconfig"]:
            await transaction.connection.execute("set local {} = {}".format(*setting.split("=")))
        answer = await transaction.connection.fetchval(f"explain (format json) {row['prosrc']}")
    assert "claims_pkey" in [node.get("Index Name") for node in nodes_of(json.loads(answer)[0]["Plan"])]


async def test_loading_the_near_future_is_an_index_range_without_a_sort(full_pool: Pool) -> None:
    horizon = NOW + timedelta(minutes=10)
    shards = list(range(64))
    args = (shards, [datetime(1, 1, 1, tzinfo=UTC)] * 64, [horizon] * 64, 100)
    for plan in await plans_of(full_pool, "fires/load", *args):
        assert_index_only_access(plan)
        assert any(node.get("Index Name") == "jobs_due" for node in nodes_of(plan))
        assert not any("Sort" in node["Node Type"] for node in nodes_of(plan))


async def test_a_bulk_submits_range_of_ids_is_a_range_of_the_primary_key(full_pool: Pool) -> None:
    first, last = (await ids(full_pool, 1000))[0], UUID(int=2**128 - 1)
    for plan in await plans_of(full_pool, "fires/load_range", first, last, 8000):
        assert_index_only_access(plan)
        assert not any("Sort" in node["Node Type"] for node in nodes_of(plan))


async def test_completing_reads_only_the_claims_it_names(full_pool: Pool) -> None:
    for size in (1, 1000):
        args: tuple[Any, ...] = (
            [uuid4()], [1] * size, list(range(1, size + 1)), [1] * size, [2] * size, [None] * size, [0] * size, [],
        )  # fmt: skip
        for plan in await plans_of(full_pool, "runs/complete", *args):
            assert_index_only_access(plan)
            # A nested loop of outcomes with the claim's runs would cost size × size.
            for node in nodes_of(plan):
                if node["Node Type"] == "Nested Loop":
                    inner = node["Plans"][1]
                    assert inner["Node Type"] != "CTE Scan" or inner.get("CTE Name") != "run"


async def test_looking_for_expired_leases_uses_the_lease_index(full_pool: Pool) -> None:
    # Claims are few here; the index must exist and be usable when they are many.
    async with full_pool.transaction() as transaction:
        await transaction.connection.execute("set local enable_seqscan = off")
        for args in ((100, None, False), (100, NOW, False)):
            rows = await transaction.connection.fetch(
                f"explain (format json) {statement('maintenance/expired')}", *args
            )
            plan = json.loads(rows[0][0])[0]["Plan"]
            assert any(node.get("Index Name") == "claims_lease" for node in nodes_of(plan))


async def test_rescue_probes_history_and_jobs_by_key(full_pool: Pool) -> None:
    for plan in await plans_of(full_pool, "maintenance/rescue", [uuid4()], 3):
        assert_index_only_access(plan)


async def test_a_jobs_runs_are_listed_newest_first_without_sorting_its_history(full_pool: Pool) -> None:
    job = (await ids(full_pool, 1))[0]
    for plan in await plans_of(full_pool, "history/job_run_times", job, datetime(9999, 1, 1, tzinfo=UTC), 100):
        assert_index_only_access(plan)


async def test_explaining_looks_at_one_job_only(full_pool: Pool) -> None:
    job = (await ids(full_pool, 1))[0]
    first, last = NOW - timedelta(days=1), NOW + timedelta(days=1)
    for plan in await plans_of(full_pool, "history/records_between", job, first, last, 1000, 0):
        assert_index_only_access(plan)
    async with full_pool.transaction() as transaction:
        # The log is short here; the index must exist and be usable when it is long.
        await transaction.connection.execute("set local enable_seqscan = off")
        rows = await transaction.connection.fetch(f"explain (format json) {statement('changes/of_job')}", job, 100)
        plan = json.loads(rows[0][0])[0]["Plan"]
        assert any(node.get("Index Name") == "job_changes_job" for node in nodes_of(plan))


async def test_recent_runs_come_from_the_end_of_the_index(full_pool: Pool) -> None:
    for plan in await plans_of(full_pool, "history/recent_runs", "default", 50, 2_000, 200):
        assert_index_only_access(plan)
    for plan in await plans_of(full_pool, "history/runs_page", uuid4(), [NOW] * 100, 4_000_000):
        assert_index_only_access(plan)


# Each list: its statement, tenant and status, and the index of each of its walks.
LISTS = [
    ("jobs/list", "default", None, ["jobs_pkey"]),
    ("jobs/list_set_aside", "default", "paused", ["jobs_set_aside"]),
    ("jobs/list_of_tenant", "small", None, ["jobs_by_status"] * 4),
    ("jobs/list_by_status", "small", "active", ["jobs_by_status"]),
    ("jobs/list_labelled", "small", None, ["jobs_labelled"]),
]


@pytest.mark.parametrize(("name", "tenant", "status", "indexes"), LISTS, ids=[one[0] for one in LISTS])
async def test_listing_jobs_walks_along_an_index_from_the_cursor_on(
    full_pool: Pool, name: str, tenant: str, status: str | None, indexes: list[str]
) -> None:
    for plan in await plans_of(full_pool, name, tenant, status, None, None, None, None, 101, 20_000):
        assert not any("Sort" in node["Node Type"] for node in nodes_of(plan))
        assert not any(node["Node Type"] == "Seq Scan" and node["Relation Name"] == "jobs" for node in nodes_of(plan))
        walked = [node for node in nodes_of(plan) if "job_id <" in node.get("Index Cond", "")]
        assert [node["Index Name"] for node in walked] == indexes
        assert all(node["Scan Direction"] == "Backward" for node in walked)
        if name != "jobs/list":
            assert all(("tenant =" in node["Index Cond"]) == (tenant != "default") for node in walked)


async def test_a_page_of_jobs_or_dead_letters_goes_by_their_keys(full_pool: Pool) -> None:
    jobs = await ids(full_pool, 100)
    for name, args in (
        ("jobs/page", (jobs, 4_000_000, True, "default")),
        ("dead_letters/page", (jobs, [NOW] * 100, 4_000_000, True, "default")),
    ):
        for plan in await plans_of(full_pool, name, *args):
            assert_index_only_access(plan)


async def test_figures_for_monitoring_are_bounded_by_indexes(full_pool: Pool) -> None:
    for plan in await plans_of(full_pool, "stores/figures", 1000, 100_000):
        assert_index_only_access(plan)
        indexes = {node["Index Name"] for node in nodes_of(plan) if "Index Name" in node}
        assert {"runs_lane", "jobs_due"} <= indexes


_CATCH_UPS = """
insert into duly.catch_ups (job_id, first_at, last_at, count, served_at, shard, epoch)
select job_id, next_run_at, next_run_at, 1, next_run_at, shard, 1 from duly.jobs
on conflict do nothing
"""


async def test_a_governed_catch_up_serves_whoever_is_next_without_reading_all_that_wait(full_pool: Pool) -> None:
    async with full_pool.transaction() as transaction:
        await transaction.connection.execute(_CATCH_UPS)
        await transaction.connection.execute("analyze duly.catch_ups")
        shards = list(range(64))
        jobs = await transaction.connection.fetchval(
            "select array_agg(job_id) from (select * from duly.jobs limit 500) j"
        )
        n = len(jobs)
        release = (0, 1, jobs, [NOW] * n, [NOW] * n, [None] * n, ["skip"] * n, [100] * n,
                   jobs, [NOW] * n, [10] * n, [1] * n)  # fmt: skip
        for name, args in (("fires/catch_ups", (shards, 500, [])), ("fires/release", release)):
            rows = await transaction.connection.fetch(f"explain (format json) {statement(name)}", *args)
            plan = json.loads(rows[0][0])[0]["Plan"]
            assert_index_only_access(plan)
            assert not any(
                node["Node Type"] == "Seq Scan" and node["Relation Name"] == "catch_ups" for node in nodes_of(plan)
            ), name
        await transaction.connection.execute("delete from duly.catch_ups")


async def test_changing_and_unparking_touch_the_jobs_they_name(full_pool: Pool) -> None:
    job = (await ids(full_pool, 1))[0]
    change: tuple[Any, ...] = (
        job, "default", 1, True, NOW, NOW, "{}", None, None, 0, "redefined", "digest", None, b"",
        "name", "{}", None, "cron", "* * * * *", "UTC", None, None, None, "default", 5, None, None,
    )  # fmt: skip
    for plan in await plans_of(full_pool, "jobs/change", *change):
        assert_index_only_access(plan)
    for plan in await plans_of(full_pool, "jobs/follow", job):
        assert_index_only_access(plan)
    jobs = await ids(full_pool, 1000)
    for plan in await plans_of(full_pool, "maintenance/unpark", jobs, [1] * 1000, [NOW] * 1000, []):
        assert_index_only_access(plan)


async def test_a_page_of_the_survey_is_a_range_of_the_primary_key(full_pool: Pool) -> None:
    for plan in await plans_of(full_pool, "demands/survey", 20_000, 10_000):
        scans = [node for node in nodes_of(plan) if node.get("Relation Name") == "jobs"]
        assert [(scan["Node Type"], scan["Index Name"]) for scan in scans] == [("Index Scan", "jobs_pkey")]
        assert "job_id >" in scans[0]["Index Cond"]


async def test_the_latest_demands_are_read_along_indexes(full_pool: Pool) -> None:
    for plan in await plans_of(full_pool, "demands/latest", 200, 50, 8, 1000):
        scans = [node for node in nodes_of(plan) if node.get("Relation Name") in BIG]
        assert {scan["Node Type"] for scan in scans} <= {"Index Scan", "Index Only Scan"}
        used = {scan["Index Name"] for scan in scans}
        assert used == {"jobs_pkey", "jobs_due", "runs_lane"}


async def test_hints_about_other_tenants_read_a_bounded_number_of_jobs(full_pool: Pool) -> None:
    low, high = UUID(int=0), UUID(int=2**128 - 1)
    for name, *args in (("with_jobs", "acme", 6, 20_000), ("with_job", low, high, "job 7", "acme", 20_000, 5)):
        for plan in await plans_of(full_pool, f"tenants/{name}", *args):
            for node in nodes_of(plan):
                assert node["Node Type"] != "Seq Scan" or node.get("Relation Name") != "jobs"
                if node["Node Type"] == "Sort":
                    assert "job_id" not in str(node["Sort Key"]), "sorts the jobs"
