"""Drift: a store is compared with what its recorded steps and routines have made."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from conftest import Server
from duly.store import catalogue, maintenance
from duly.store.catalogue import Manifest, drift, manifest
from duly.store.migrate import migrate
from duly.store.pool import Pool
from duly.store.steps import FIRST_BASELINE, Release, Routines, Step, this_release
from duly.version import VERSION
from harness.catalogue import MANIFEST, make_manifest
from harness.old_store import make_first_store
from harness.waiting import eventually

GUIDE = Path(__file__).parents[2] / "docs/upgrading.md"


@pytest.fixture
async def first_store(server: Server) -> AsyncIterator[Pool]:
    """A store as 0.1.0 makes it."""
    pool = await Pool.connect(await make_first_store(server))
    yield pool
    await pool.close()


async def differences(pool: Pool, **options: object) -> list[str]:
    return [str(one) for one in await drift(pool, **options)]  # type: ignore[arg-type]


async def test_the_manifest_is_what_the_steps_make(server: Server) -> None:
    made = await make_manifest(server, this_release())
    assert made == MANIFEST.read_text(), "run: make catalogue"


class TestNoDrift:
    async def test_in_a_new_store(self, pool: Pool) -> None:
        assert await differences(pool) == []

    async def test_in_a_store_of_the_first_version_and_after_each_step(self, first_store: Pool) -> None:
        assert await differences(first_store) == []
        for step in this_release().steps[1:]:
            await migrate(first_store, target=step.number)
            assert await differences(first_store) == []

    async def test_in_an_empty_database(self, server: Server) -> None:
        pool = await Pool.connect(server.database_url("postgres"))
        assert await differences(pool) == []
        await pool.close()

    async def test_as_days_go_by(self, pool: Pool) -> None:
        """Partitions come and go, and has_ended is written anew for them."""
        await pool.query("update duly.clock set frozen_at = now() + interval '20 days'")
        assert (await maintenance.ensure_partitions(pool)).made > 0
        await pool.query("select duly.write_has_ended(current_date + 3, current_date + 9)")
        assert await differences(pool) == []

    async def test_in_what_operators_set(self, pool: Pool) -> None:
        await pool.query("alter table duly.jobs set (fillfactor = 70, autovacuum_vacuum_threshold = 10)")
        await pool.query("alter table duly.jobs alter column name set statistics 500")
        await pool.query("grant select on duly.jobs to public")
        await pool.query("create view duly.jobs_per_queue as select queue, count(*) from duly.jobs group by queue")
        await pool.query("create function duly.my_own() returns int language sql as 'select 1'")
        assert await differences(pool) == []

    async def test_for_a_role_that_may_only_read_what_was_applied(self, pool: Pool, server: Server) -> None:
        await pool.query("""do $$ begin
            if not exists (select from pg_roles where rolname = 'drift_reader') then
                create role drift_reader login;
            end if;
        end $$""")
        (rights,) = re.findall(r"```sql\n(grant usage .*?)```", GUIDE.read_text(), re.DOTALL)
        async with pool.transaction() as within:
            await within.connection.execute(rights.replace("duly_reader", "drift_reader"))
        await pool.query("drop index duly.runs_lane")
        reader = await Pool.connect(re.sub(r"://[^/@]*@", "://drift_reader@", pool.url))
        assert [one.what for one in await drift(reader)] == ["index runs_lane of table runs"]
        await reader.close()


CHANGES = {
    "table ledger is missing": "drop table duly.ledger",
    "table progress is 'table' and not 'table, unlogged'": "alter table duly.progress set logged",
    "table jobs is 'table, row level security' and not 'table'": "alter table duly.jobs enable row level security",
    "column jobs.labels is missing; run: alter table duly.jobs add column labels jsonb": (
        "drop index duly.jobs_labelled; drop view duly.job_status; alter table duly.jobs drop column labels"
    ),
    "column runs.attempt is 'integer not null default 0' and not 'smallint": (
        "alter table duly.runs alter column attempt type integer"
    ),
    "column runs.queue is 'text' and not 'text not null'; run: alter table duly.runs alter column queue set not": (
        "alter table duly.runs alter column queue drop not null"
    ),
    "column runs.flags is 'smallint not null' and not 'smallint not null default 0'; run: alter table duly.runs alter "
    "column flags set default 0": "alter table duly.runs alter column flags drop default",
    "column tenants.mine is not Duly's (integer); if nothing needs it: alter table duly.tenants drop column mine": (
        "alter table duly.tenants add column mine int"
    ),
    "index runs_lane of table runs is missing; run: CREATE INDEX CONCURRENTLY runs_lane": "drop index duly.runs_lane",
    "index jobs_mine of table jobs is not Duly's": "create index jobs_mine on duly.jobs (name)",
    "index runs_lane of table runs is 'CREATE INDEX runs_lane ON duly.runs USING btree (queue)' and not": (
        "drop index duly.runs_lane; create index runs_lane on duly.runs (queue)"
    ),
    "index jobs_due of table jobs is invalid: its build was interrupted; run: reindex index concurrently": (
        "update pg_index set indisvalid = false where indexrelid = 'duly.jobs_due'::regclass"
    ),
    "constraint runs_state_check of table runs is missing; run: alter table duly.runs add constraint runs_state_che": (
        "alter table duly.runs drop constraint runs_state_check"
    ),
    "constraint jobs_pkey of table jobs is missing": "alter table duly.jobs drop constraint jobs_pkey",
    "constraint mine of table jobs is not Duly's (CHECK ((priority > 0)))": (
        "alter table duly.jobs add constraint mine check (priority > 0)"
    ),
    "trigger mine of table jobs is not Duly's": (
        "create trigger mine before update on duly.jobs for each row execute function "
        "suppress_redundant_updates_trigger()"
    ),
    "rule mine of table jobs is not Duly's": "create rule mine as on delete to duly.jobs do instead nothing",
    "view live_claims is not as Duly made it": (
        "create or replace view duly.live_claims as select c.* from duly.claims c where c.claim_id is not null"
    ),
    "function is_missed(flags smallint) is not as Duly made it": (
        "create or replace function duly.is_missed(flags smallint) returns boolean language sql immutable "
        "parallel safe begin atomic select flags::integer & 4 = 4; end"
    ),
    "function whole(policy jsonb, field text, otherwise integer) is not as Duly made it; its definition is in: duly "
    "migrate --sql --from 0": "alter function duly.whole security definer",
    "function has_ended(job uuid, at timestamp with time zone) is not as Duly made it": (
        "alter function duly.has_ended security invoker"
    ),
    "function overlap(policy jsonb) is not as Duly made it": "alter function duly.overlap(jsonb) set work_mem = '1MB'",
    "function overlap(policy text) is not Duly's": (
        "create function duly.overlap(policy text) returns text language sql as 'select policy'"
    ),
    "function refuse(field text, message text, code text) is missing; to put Duly's own back: delete from": (
        "drop function duly.refuse"
    ),
    "function refuse(field text, message text, code text) is not as Duly made it; to put Duly's own back": (
        "alter function duly.refuse(text, text, text) reset all"
    ),
}


@pytest.mark.parametrize("said", CHANGES)
async def test_a_change_is_named_with_what_to_do(pool: Pool, said: str) -> None:
    async with pool.transaction() as within:
        await within.connection.execute(CHANGES[said])
    lines = await differences(pool)
    assert any(line.startswith(said) for line in lines), lines
    assert all(line.count("; ") >= 1 for line in lines), "each says what to do"


async def test_what_is_advised_for_routines_mends_them(pool: Pool) -> None:
    await pool.query("drop function duly.refuse")
    (one,) = await drift(pool)
    advised = one.advice.partition(": ")[2].partition("; ")[0]
    await pool.query(advised)
    await migrate(pool)
    assert await drift(pool) == []


async def test_in_a_schema_of_another_name(server: Server, database_url: str) -> None:
    """One that is also the name of a table."""
    pool = await Pool.connect(database_url, schema="jobs")
    await migrate(pool)
    assert await drift(pool) == []
    await pool.query("drop index duly.runs_lane")
    await pool.query("alter function duly.overlap(jsonb) set work_mem = '1MB'")
    await pool.query("drop function duly.refuse")
    function, routine, index = await differences(pool)
    assert function.startswith("function overlap(policy jsonb) is not as Duly made it")
    assert index == (
        "index runs_lane of table runs is missing; run: CREATE INDEX CONCURRENTLY runs_lane ON jobs.runs USING btree "
        "(queue, priority, run_at)"
    )
    assert "delete from jobs.migrations" in routine
    await pool.close()


class TestChecksums:
    async def test_a_step_that_was_applied_from_another_text(self, pool: Pool) -> None:
        await pool.query("update duly.migrations set checksum = 'another' where version = -2")
        (one,) = await drift(pool)
        assert (one.what, one.is_so[:29]) == ("step 0002_versions", "was applied from another text")
        await pool.query(one.advice.rpartition("; then: ")[2])
        assert await drift(pool) == []

    async def test_the_first_versions_baseline_is_known(self, pool: Pool) -> None:
        await pool.query("update duly.migrations set checksum = $1 where version = 1", FIRST_BASELINE)
        assert await drift(pool) == []
        await pool.query("update duly.migrations set checksum = 'another' where version = 1")
        assert [one.what for one in await drift(pool)] == ["step 0001_baseline"]

    async def test_routines_that_would_be_put_again_are_not_drift(self, pool: Pool) -> None:
        await pool.query("update duly.migrations set checksum = 'of a build in between' where version = -1")
        await pool.query("alter function duly.refuse(text, text, text) reset all")
        assert await drift(pool) == []
        await migrate(pool)
        assert await drift(pool) == []


class TestOtherSteps:
    CONCURRENT = Step(
        100,
        "index",
        "-- concurrently\ncreate index concurrently if not exists steps_by_handler on duly.jobs (handler);\n",
    )
    PLAIN = Step(101, "later", "create table duly.later (a int);")

    def release(self, *steps: Step) -> Release:
        own = this_release()
        return Release(VERSION, (*own.steps, *steps), Routines(VERSION, own.routines.texts), 1)

    async def known(self, server: Server, *steps: Step) -> Manifest:
        import json

        sql = [replace(step, sql=step.sql.replace(" concurrently", "")) for step in steps]
        document = json.loads(await make_manifest(server, self.release(*sql), "test_manifest_more"))
        return Manifest({int(number): made for number, made in document["steps"].items()}, document["routines"])

    async def test_of_a_newer_duly_are_left_to_it(self, pool: Pool) -> None:
        await pool.query("alter table duly.jobs add column newer text")
        assert [one.what for one in await drift(pool)] == ["column jobs.newer"]
        await pool.query("insert into duly.migrations (version, name, checksum) values (-9000, 'newer', 'x')")
        assert await drift(pool) == []
        await pool.query("update duly.migrations set checksum = 'another' where version = -2")
        assert [one.what for one in await drift(pool)] == ["step 0002_versions"]

    async def test_what_a_step_to_come_makes_is_in_its_way(self, pool: Pool, server: Server) -> None:
        to, known = self.release(self.PLAIN), await self.known(server, self.PLAIN)
        assert await drift(pool, release=to, known=known) == []
        await pool.query("create table duly.later (a int)")
        lines = await differences(pool, release=to, known=known)
        assert lines[-1] == (
            "table later is there, but 0101_later, which makes it, is not recorded and would fail; look at how it came "
            "there, and drop it: drop table duly.later"
        )
        await pool.query("drop table duly.later")
        await migrate(pool, release=to)
        assert await drift(pool, release=to, known=known) == []

    async def test_an_index_that_is_being_built_is_not_drift(self, pool: Pool, server: Server) -> None:
        to, known = self.release(self.CONCURRENT), await self.known(server, self.CONCURRENT)
        writer = await asyncpg.connect(pool.url)
        async with writer.transaction():
            await writer.execute("lock table duly.jobs in row exclusive mode")
            migrating = asyncio.create_task(migrate(pool, release=to))

            async def began() -> bool:
                return bool(await pool.query("select from pg_class where relname = 'steps_by_handler'"))

            await eventually(began)
            assert await drift(pool, release=to, known=known) == []
        await migrating
        assert await drift(pool, release=to, known=known) == []
        await writer.close()


def test_every_kind_of_fact_is_read_back_as_it_was_written() -> None:
    known = manifest()
    for key in (*known.after(known.steps), *known.routines[VERSION]):
        assert catalogue.Thing.read(key).key == key
