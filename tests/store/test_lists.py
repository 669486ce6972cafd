"""A list costs what its page costs, for every filter and beside many ended jobs; a page is also limited in bytes. These
tests count rows, not seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from duly.config import load_settings
from duly.model import DEFAULT_TENANT, DeadLetterFilter
from duly.operations import StoreOperations
from duly.operations import forecast as forecasting
from duly.store import history, jobs, stores
from duly.store.pool import Pool
from duly.store.statements import statement
from harness.store import due_job, hours_ago, put, put_now

ENDED = 3_000
MOST = 400
PAGE = 20

_FILL = """
insert into duly.jobs (job_id, next_run_at, last_run_at, created_at, updated_at, shard, priority, status, kind, tenant,
    name, queue, handler, schedule, timezone, payload, labels)
select id, case when $2 = 'active' then now() + interval '1 day' end, $5::timestamptz, now(), now(),
    duly.shard_of(id, 64), 5, $2, case $2 when 'ended' then 'once' else 'interval' end, $1, $2 || ' ' || n % 7,
    'default', 'noop', 'every 1h', 'UTC', '{}', $4::jsonb
from (select duly.new_job_id(now()) as id, n from generate_series(1, $3::int) n offset 0) made
"""
_OVER = """
insert into duly.history (job_id, scheduled_at, finished_at, attempt, status)
select job_id, last_run_at, last_run_at, 1, 'succeeded' from duly.jobs where status = 'ended'
"""


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowers the limits, so that some thousand jobs count as many."""
    monkeypatch.setattr(jobs, "MAX_ROWS_READ", MOST)
    monkeypatch.setattr(jobs, "_MAX_ENDED_READ", MOST)
    monkeypatch.setattr(jobs, "_FIRST_READ", MOST // 4)


async def fill(pool: Pool) -> None:
    """Stores, for each of two tenants, few jobs of each status, half of them labelled, and then many completed ones."""
    over = hours_ago(2)
    for tenant in ("default", "acme"):
        for status in ("active", "paused", "cancelled"):
            await pool.query(_FILL, tenant, status, 15, None, over)
            await pool.query(_FILL, tenant, status, 15, json.dumps({"team": "red"}), over)
        await pool.query(_FILL, tenant, "ended", ENDED, None, over)
    await pool.query(_OVER)
    # Jobs that have ended and have an unfinished run.
    for tenant in ("default", "acme"):
        await put_now(pool, 10, tenant=tenant, name="active 1")
    await pool.query("analyze duly.jobs, duly.runs, duly.history")


class Watched:
    """A store that records which statements it executes."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    async def fetch(self, name: str, *args: Any) -> Any:
        self.asked.append((name, args))
        return await self.pool.fetch(name, *args)

    async def row(self, name: str, *args: Any) -> Any:
        rows = await self.fetch(name, *args)
        return rows[0] if rows else None

    async def rows_read(self) -> int:
        """The number of rows that the recorded statements read from tables."""
        read = 0
        for name, args in self.asked:
            explained = await self.pool.query(f"explain (analyze, timing off, format json) {statement(name)}", *args)
            for node in _nodes(json.loads(explained[0][0])[0]["Plan"]):
                if "Relation Name" in node and not node["Node Type"].startswith("Bitmap Index"):
                    seen = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
                    read += round(seen * node["Actual Loops"])
        return read


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


_TRUTH = """
select job_id from duly.job_status
where tenant = $1 and ($2::text is null or shown_status = $2) and ($3::text is null or name = $3)
    and ($4::text is null or labels @> $4::jsonb)
order by job_id desc
"""
RED = {"team": "red"}
FILTERS: list[dict[str, Any]] = [
    {},
    *({"status": status} for status in ("active", "paused", "cancelled", "completed")),
    {"name": "paused 3"},
    {"name": "nobody"},
    {"label": RED},
    {"label": {"team": "blue"}},
    *({"status": status, "label": RED} for status in ("active", "paused", "completed")),
    *({"status": status, "name": f"{status} 1"} for status in ("active", "cancelled")),
    {"status": "completed", "name": "nobody"},
    {"status": "active", "name": "active 1", "label": RED},
]


@pytest.mark.usefixtures("narrow")
async def test_every_list_is_whole_and_no_page_of_it_costs_more_than_its_bound(pool: Pool, database_url: str) -> None:
    await fill(pool)
    for tenant in ("default", "acme"):
        for asked in FILTERS:
            label = json.dumps(asked["label"]) if "label" in asked else None
            truth = await pool.query(_TRUTH, tenant, asked.get("status"), asked.get("name"), label)
            watched = Watched(pool)
            found: list[UUID] = []
            wanted = jobs.Wanted(tenant, **asked)
            pages = 0
            while True:
                listed = await jobs.list_ids(watched, wanted, limit=PAGE)  # type: ignore[arg-type]
                found += listed.job_ids
                pages += 1
                if pages in (1, 4):
                    # The rows of a walk, of the looks that may precede it, and of the matching jobs.
                    assert await watched.rows_read() < 5 * MOST + 20 * PAGE, (tenant, asked, watched.asked)
                watched.asked.clear()
                if len(listed.job_ids) >= PAGE:
                    wanted = jobs.Wanted(tenant, **asked, before=listed.job_ids[-1])
                elif listed.stop is not None:
                    wanted = jobs.Wanted(tenant, **asked, before=listed.stop)
                else:
                    break
            assert found == [row["job_id"] for row in truth], (tenant, asked)
            assert pages <= len(truth) / PAGE + 2 * (2 * ENDED / MOST) + 5


@pytest.mark.usefixtures("narrow")
async def test_few_of_a_status_are_one_page_beside_many_that_are_completed(pool: Pool, database_url: str) -> None:
    await fill(pool)
    store_operations = await StoreOperations.open(pool, load_settings(database_url=database_url))
    for tenant in ("default", "acme"):
        for status, many in (("active", 40), ("paused", 30), ("cancelled", 30)):
            page = await store_operations.for_tenant(tenant).jobs.page(status=status, limit=50)
            assert (len(page.items), page.next_cursor) == (many, None), (tenant, status)
            watched = Watched(pool)
            await jobs.list_ids(watched, jobs.Wanted(tenant, status), limit=50)  # type: ignore[arg-type]
            assert status == "active" or await watched.rows_read() <= many + 1


@pytest.mark.usefixtures("narrow")
async def test_a_job_is_found_by_its_name_behind_many_others(pool: Pool, database_url: str) -> None:
    job = due_job(pool, hours_ago(-1), name="nightly", tenant="acme")
    await put(pool, job)
    await put_now(pool, 5 * MOST, tenant="acme")
    store_operations = await StoreOperations.open(pool, load_settings(database_url=database_url))
    assert (await store_operations.for_tenant("acme").jobs.find("nightly")).job_id == job.job_id
    assert (await store_operations.for_tenant("acme").jobs.find(str(job.job_id)[:13])).job_id == job.job_id


async def test_a_page_ends_by_bytes_and_the_next_goes_on_behind_it(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PAGE_BYTES", 100_000)
    made = await put_now(pool, 12, payload=json.dumps("x" * 30_000))
    await pool.query(
        "insert into duly.dead_letters select job_id, created_at, created_at, 1, tenant, name, queue, handler, null, "
        'payload, null, \'{"type": "E", "message": "m"}\', \'[]\' from duly.jobs'
    )
    operations = (await StoreOperations.open(pool, load_settings(database_url=database_url))).for_tenant(DEFAULT_TENANT)

    async def sizes(what: str, **options: Any) -> list[int]:
        cursor, found, pages = None, [], []
        while True:
            if what == "jobs":
                page: Any = await operations.jobs.page(cursor=cursor, limit=1000, **options)
            else:
                page = await operations.dead_letters.page(DeadLetterFilter(), cursor=cursor, limit=1000, **options)
            found += [item.job_id for item in page.items]
            pages.append(len(page.items))
            assert all(item.payload == ("x" * 30_000 if options.get("payload", True) else None) for item in page.items)
            if (cursor := page.next_cursor) is None:
                assert sorted(found) == sorted(job.job_id for job in made)
                return pages

    for what in ("jobs", "letters"):
        assert await sizes(what) == [4, 4, 4]
        assert await sizes(what, payload=False) == [12]
    monkeypatch.setattr(jobs, "PAGE_BYTES", 1)
    for what in ("jobs", "letters"):
        assert await sizes(what) == [1] * 12, "a page holds at least one"


async def test_what_is_not_sent_of_a_page_is_not_read(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await put_now(pool, 50, payload=json.dumps("x" * 20_000))
    ids = sorted((job.job_id for job in made), reverse=True)
    explained = await pool.query(
        f"explain (analyze, timing off, format json) {statement('jobs/page')}", ids, 50_000, True, "default"
    )
    scans = [node for node in _nodes(json.loads(explained[0][0])[0]["Plan"]) if node.get("Index Name") == "jobs_pkey"]
    assert max(node["Actual Loops"] for node in scans) == 3


async def test_dead_letters_of_a_tenant_are_listed_without_all_others(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MAX_ROWS_READ", MOST)
    await pool.query(
        "insert into duly.dead_letters select gen_random_uuid(), now(), now() - n * interval '1 second', 1, "
        "case when n % 100 = 0 then 'acme' else 'other' end, 'name ' || n % 1000, 'default', 'noop', null, '{}', null, "
        '\'{"type": "E", "message": "m"}\', \'[]\' from generate_series(1, 2000) n'
    )
    await pool.query("analyze duly.dead_letters")
    store_operations = await StoreOperations.open(pool, load_settings(database_url=database_url))
    page = await store_operations.for_tenant("acme").dead_letters.page(limit=100)
    assert (len(page.items), page.next_cursor) == (20, None)
    explained = await pool.query(
        f"explain (analyze, timing off, format json) {statement('dead_letters/list_positions')}",
        "acme", *[None] * 10, 101, MOST,
    )  # fmt: skip
    (scan,) = [node for node in _nodes(json.loads(explained[0][0])[0]["Plan"]) if "Relation Name" in node]
    assert scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0) == 20
    # Two of many letters are found, over as many pages as it takes.
    found, cursor = [], None
    while True:
        page = await store_operations.for_tenant("other").dead_letters.page(
            DeadLetterFilter(name="name 7"), cursor=cursor
        )
        found += page.items
        if (cursor := page.next_cursor) is None:
            break
    assert [letter.name for letter in found] == ["name 7"] * 2


async def test_others_load_does_not_falsify_a_tenants_figures(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_MAX_TENANT_COUNTED", 50)
    await put_now(pool, 400, tenant="a")
    late = [due_job(pool, hours_ago(1), tenant="a") for _ in range(60)]
    await put(pool, *late, *(due_job(pool, hours_ago(1), tenant="b") for _ in range(7)))
    await put_now(pool, 30, tenant="b")
    ours = await stores.tenant_counts(pool, tenant="b")
    assert (ours.queued, ours.overdue, ours.jobs, ours.at_least) == (30, 7, 37, ())
    theirs = await stores.tenant_counts(pool, tenant="a")
    assert theirs.queued >= 50
    assert {"queued", "overdue"} & set(theirs.at_least) == {"queued"}


async def test_others_jobs_do_not_make_an_estimate_of_a_tenants_forecast(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecasting, "_MAX_JOBS", 40)
    soon = hours_ago(-0.01)
    await put(pool, *(due_job(pool, soon, tenant="a") for _ in range(600)))
    await put(pool, *(due_job(pool, soon, tenant="b") for _ in range(25)))
    store_operations = await StoreOperations.open(pool, load_settings(database_url=database_url))
    ours = await store_operations.for_tenant("b").forecast(minutes=30)
    assert (ours.total, ours.estimated, ours.cut) == (25, False, False)
    monkeypatch.setattr(forecasting, "_MAX_OWN_JOBS", 24)
    assert (await store_operations.for_tenant("b").forecast(minutes=30)).estimated


async def test_recent_runs_are_found_behind_others_and_read_no_more_than_some_of_them(pool: Pool) -> None:
    over = hours_ago(2)
    await pool.query(_FILL, "b", "ended", 5, None, over)
    await pool.query(_OVER)
    await pool.query(_FILL, "a", "ended", 3_000, None, hours_ago(1))
    await pool.query(_OVER + " and tenant = 'a'")
    await pool.query("analyze duly.jobs, duly.history")
    ours = await history.recent_runs(pool, tenant="b", limit=50)
    assert len(ours) == 5
    assert len(await history.recent_runs(pool, tenant="a", limit=50)) == 50
    watched = Watched(pool)
    await history.recent_runs(watched, tenant="b", limit=50)  # type: ignore[arg-type]
    assert await watched.rows_read() < 2 * (history._MAX_RECENT_RUNS + history._MAX_RECENT_JOBS) + 200


async def test_a_page_of_runs_ends_by_bytes(pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PAGE_BYTES", 100_000)
    (job,) = await put_now(pool, 1)
    await pool.query(
        "insert into duly.history (job_id, scheduled_at, finished_at, attempt, status, result) select $1, "
        "now() - n * interval '1 second', now(), 1, 'succeeded', to_jsonb(repeat('x', 30000)) "
        "from generate_series(1, 9) n",
        job.job_id,
    )
    operations = (await StoreOperations.open(pool, load_settings(database_url=database_url))).for_tenant(DEFAULT_TENANT)
    found, pages, cursor = [], [], None
    while True:
        page = await operations.runs.page(str(job.job_id), cursor=cursor, limit=1000)
        found += [run.scheduled_at for run in page.items]
        pages.append(len(page.items))
        if (cursor := page.next_cursor) is None:
            break
    assert pages == [5, 4, 1], "the unfinished run has next to no bytes"
    assert found == sorted(set(found), reverse=True)
    assert len(found) == 10
