"""Versions of a store: what is recorded, who may work on it, and what is applied again."""

from __future__ import annotations

import asyncio
import hashlib
import tomllib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from conftest import Server
from duly.errors import StoreMismatch
from duly.store import pool as pools
from duly.store.migrate import check_version, migrate, plan, recorded
from duly.store.pool import Pool
from duly.store.steps import (
    FENCE,
    FIRST_BASELINE,
    Release,
    Routines,
    Step,
    check_min_version,
    this_release,
)
from duly.version import VERSION, parsed
from harness.old_store import make_first_store
from harness.waiting import eventually

ROOT = Path(__file__).parents[2]


def release(*steps: Step, version: str = VERSION, routines: Routines | None = None, required: int = 1) -> Release:
    """This Duly with further steps, from 100 on."""
    own = this_release()
    return Release(version, (*own.steps, *steps), routines or replace(own.routines, version=version), required)


def before(number: int, name: str, sql: str) -> Step:
    return Step(number, name, sql)


def after(number: int, name: str, sql: str, min_version: str) -> Step:
    return Step(number, name, f"-- min_version: {min_version}\n{sql}", "after")


async def labels(pool: Pool, to: Release, **options: object) -> list[str]:
    return [one.label for one in await migrate(pool, release=to, **options)]  # type: ignore[arg-type]


def test_the_version_is_that_of_the_package() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION
    assert parsed("0.10.0") > parsed("0.9.9") > parsed("0.9") > parsed("dev")


@pytest.fixture
async def first_store(server: Server) -> AsyncIterator[Pool]:
    """A store as 0.1.0 makes it."""
    url = await make_first_store(server)
    pool = await Pool.connect(url)
    yield pool
    await pool.close()


class TestTheFirstVersionsStore:
    async def test_it_is_worked_on_as_it_is_and_then_migrated(self, first_store: Pool) -> None:
        await check_version(first_store)
        assert not first_store.has_step(2)
        assert (await recorded(first_store)).rows[1].checksum == FIRST_BASELINE
        assert [one.label for one in await migrate(first_store)] == [
            *(step.label for step in this_release().steps[1:]),
            this_release().routines.label,
        ]
        assert first_store.has_step(2)
        assert await plan(first_store) == []

    async def test_the_first_version_goes_on_with_a_store_that_was_migrated(self, first_store: Pool) -> None:
        """0.1.0 refuses a store with a row above 1, and one without row 1; a joined submit compares the greatest."""
        await migrate(first_store)
        rows = await first_store.query("select max(version) as newest from duly.migrations")
        assert rows[0]["newest"] == 1

    async def test_a_process_that_runs_notices_that_the_store_was_migrated(
        self, first_store: Pool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = await Pool.connect(first_store.url)
        assert not other.has_step(2)
        await migrate(first_store)
        assert not other.has_step(2), "the store is not asked each time"
        monkeypatch.setattr(pools, "STEPS_SECONDS", 0.0)

        async def noticed() -> bool:
            return other.has_step(2)

        await eventually(noticed)
        await other.close()

    async def test_its_view_says_what_it_has(self, first_store: Pool) -> None:
        await migrate(first_store)
        rows = await first_store.query("select number, name from duly.steps order by number")
        assert [(row["number"], row["name"]) for row in rows] == [
            (step.number, step.name) for step in this_release().steps
        ]


def test_the_first_baseline_is_that_of_the_first_version() -> None:
    texts = [path.read_text() for path in sorted((ROOT / "tests/store/first_schema").glob("*.sql"))]
    assert hashlib.sha256("\n".join(texts).encode()).hexdigest() == FIRST_BASELINE


class TestWhoMayWork:
    async def test_a_store_with_more_steps_is_worked_on(self, pool: Pool) -> None:
        await migrate(pool, release=release(before(100, "later", "create table duly.later ()"), version="0.3.0"))
        await check_version(pool)
        assert await migrate(pool) == []

    async def test_a_store_that_needs_a_newer_duly_is_refused_and_not_touched(self, pool: Pool) -> None:
        await pool.query("insert into duly.migrations (version, name, checksum) values (0, '0.3.0', '')")
        for work in (check_version, migrate, plan):
            with pytest.raises(StoreMismatch, match=r"newer.*needs version 0.3.0"):
                await work(pool)
        check_min_version("0.3.0", release(version="0.3.0"))

    async def test_a_store_more_than_one_version_older_is_refused_with_what_is_missing(self, pool: Pool) -> None:
        step = before(100, "later", "create table duly.later ()")
        await check_version(pool, release=release(step, version="0.3.0", required=99))
        with pytest.raises(StoreMismatch, match=r"older.*0100_later.*duly migrate"):
            await check_version(pool, release=release(step, version="0.4.0", required=100))


class TestRoutines:
    @staticmethod
    def brought(version: str, *functions: str) -> Routines:
        return Routines(version, (*this_release().routines.texts, *functions))

    @staticmethod
    def function(arguments: str, answer: str) -> str:
        return (
            f"create or replace function duly.answer({arguments}) returns text language sql\n"
            f"set search_path = pg_catalog, pg_temp as $$ select '{answer}' $$;\n"
        )

    async def test_they_are_applied_again_when_their_text_has_changed(self, pool: Pool) -> None:
        for answer in ("one", "two"):
            to = release(routines=self.brought(VERSION, self.function("", answer)))
            assert await labels(pool, to) == [f"routines of {VERSION}"]
            assert (await pool.query("select duly.answer() as answer"))[0]["answer"] == answer
            assert await labels(pool, to) == []

    async def test_those_of_a_newer_version_stay(self, pool: Pool) -> None:
        newer = release(routines=self.brought("0.3.0", self.function("", "newer")), version="0.3.0")
        await migrate(pool, release=newer)
        older = release(routines=self.brought("0.2.9", self.function("", "older")), version="0.2.9")
        assert await labels(pool, older) == []
        assert (await pool.query("select duly.answer() as answer"))[0]["answer"] == "newer"

    async def test_a_function_with_other_arguments_keeps_the_rights_that_users_gave(self, pool: Pool) -> None:
        await pool.query("""do $$ begin
            if not exists (select from pg_roles where rolname = 'steps_caller') then create role steps_caller; end if;
        end $$""")
        await migrate(pool, release=release(routines=self.brought(VERSION, self.function("a int default 1", "one"))))
        rows = await pool.query("select has_function_privilege('public', 'duly.answer(int)', 'execute') as may")
        assert not rows[0]["may"]
        await pool.query("grant execute on function duly.answer to steps_caller")
        routines = self.brought(VERSION, self.function("a int default 1, b text default ''", "two"))
        await migrate(pool, release=release(routines=routines))
        rows = await pool.query(
            "select count(*) as functions, bool_and(has_function_privilege('steps_caller', oid, 'execute')) as caller, "
            "bool_or(has_function_privilege('public', oid, 'execute')) as everybody "
            "from pg_proc where pronamespace = 'duly'::regnamespace and proname = 'answer'"
        )
        assert tuple(rows[0]) == (1, True, False)
        assert (await pool.query("select duly.answer() as answer"))[0]["answer"] == "two"

    async def test_applying_them_again_takes_no_right_away(self, pool: Pool) -> None:
        await pool.query("grant execute on function duly.submit to public")
        await migrate(pool, release=release(routines=self.brought(VERSION, self.function("", "one"))))
        rows = await pool.query(
            "select has_function_privilege('public', oid, 'execute') as may from pg_proc "
            "where pronamespace = 'duly'::regnamespace and proname = 'submit'"
        )
        assert [row["may"] for row in rows] == [True]


class TestPhases:
    STEPS = (
        before(100, "add", "create table duly.added ()"),
        after(101, "drop_old", "drop table duly.added", "0.3.0"),
        before(102, "add_more", "create table duly.more ()"),
    )

    async def node(self, pool: Pool, version: str, lease: str = "1 hour") -> None:
        await pool.query(
            "insert into duly.nodes (node_id, kind, name, version, started_at, lease_until) "
            f"values (gen_random_uuid(), 'worker', 'shop-{version}', '{version}', now(), now() + interval '{lease}')"
        )

    async def test_a_destructive_step_waits_until_no_older_node_lives(self, pool: Pool) -> None:
        to = release(*self.STEPS, version="0.3.0")
        told: list[str] = []
        await self.node(pool, "0.2.0")
        await self.node(pool, "0.3.0")
        await self.node(pool, "0.1.0", lease="-1 second")
        assert await labels(pool, to, tell=told.append) == ["0100_add", "0102_add_more", "routines of 0.3.0"]
        assert told == ["0101_drop_old waits until these older nodes have ended: worker shop-0.2.0 (0.2.0)"]
        (waiting,) = await plan(pool, release=to)
        assert (waiting.what.label, waiting.waits_for) == ("0101_drop_old", ("worker shop-0.2.0 (0.2.0)",))
        await check_version(pool)
        await pool.query("update duly.nodes set stopped_at = now() where version = '0.2.0'")
        assert await labels(pool, to) == ["0101_drop_old"]
        with pytest.raises(StoreMismatch, match=r"0\.3\.0"):
            await check_version(pool)
        assert FENCE in (await recorded(pool)).rows, "0.1.0 refuses the store, too"

    async def test_phases_one_by_one_and_only_so_far(self, pool: Pool) -> None:
        to = release(*self.STEPS, version="0.3.0")
        assert await labels(pool, to, phase="after", target=100) == []
        assert await labels(pool, to, phase="before", target=100) == ["0100_add"]
        assert await labels(pool, to, phase="before") == ["0102_add_more", "routines of 0.3.0"]
        assert await labels(pool, to, phase="after") == ["0101_drop_old"]

    async def test_two_versions_ahead(self, first_store: Pool) -> None:
        """From 0.1.0 to 0.4.0: each destructive step waits for those nodes that it would break."""
        steps = (*self.STEPS, after(103, "drop_more", "drop table duly.more", "0.4.0"))
        to = release(*steps, version="0.4.0", required=102)
        with pytest.raises(StoreMismatch, match=r"older.*0100_add"):
            await check_version(first_store, release=to)
        await self.node(first_store, "0.3.0")
        done = await labels(first_store, to)
        assert done[-2:] == ["routines of 0.4.0", "0101_drop_old"]
        assert [one.what.label for one in await plan(first_store, release=to)] == ["0103_drop_more"]
        await check_version(first_store, release=to)
        await first_store.query("update duly.nodes set stopped_at = now()")
        assert await labels(first_store, to) == ["0103_drop_more"]

    def test_a_destructive_step_says_who_may_run_after_it(self, tmp_path: Path) -> None:
        from duly.store.steps import steps_in

        (tmp_path / "0100_drop.after.sql").write_text("drop table duly.x;")
        with pytest.raises(ValueError, match="min_version"):
            steps_in(tmp_path)
        (tmp_path / "0100_drop.after.sql").write_text("-- Nobody reads it.\n-- min_version: 0.3.0\ndrop table duly.x;")
        (step,) = steps_in(tmp_path)
        assert (step.number, step.name, step.phase, step.min_version) == (100, "drop", "after", "0.3.0")


class TestConcurrently:
    STEP = before(
        100,
        "index",
        "-- concurrently\ncreate index concurrently if not exists steps_by_handler on duly.jobs (handler);\n"
        "create index concurrently if not exists steps_by_zone on duly.jobs (timezone);\n",
    )

    async def valid(self, pool: Pool) -> dict[str, bool]:
        rows = await pool.query(
            "select c.relname, i.indisvalid from pg_index i join pg_class c on c.oid = i.indexrelid "
            "where c.relname like 'steps_by_%'"
        )
        return {row["relname"]: row["indisvalid"] for row in rows}

    async def test_an_attempt_that_was_killed_is_taken_up_again(self, pool: Pool) -> None:
        """The first attempt waits for a writer in the second index, and its session is killed there."""
        to = release(self.STEP)
        writer = await asyncpg.connect(pool.url)
        transaction = writer.transaction()
        await transaction.start()
        await writer.execute("lock table duly.jobs in row exclusive mode")
        migrating = asyncio.create_task(migrate(pool, release=to))
        building = (
            "select pid from pg_stat_activity where datname = current_database() and query like 'create index conc%' "
            "and wait_event_type = 'Lock' and state = 'active'"
        )

        async def builds() -> bool:
            return bool(await pool.query(building))

        await eventually(builds)
        await pool.query(f"select pg_terminate_backend(pid) from ({building}) one")
        with pytest.raises(Exception, match=r"terminat|clos|reach"):
            await migrating
        assert await self.valid(pool) == {"steps_by_handler": False}
        assert self.STEP.number not in (await recorded(pool)).steps
        await transaction.rollback()
        await writer.close()
        assert await labels(pool, to) == ["0100_index"]
        assert await self.valid(pool) == {"steps_by_handler": True, "steps_by_zone": True}
        assert await labels(pool, to) == []

    async def test_two_at_once_build_it_once(self, pool: Pool) -> None:
        other = await Pool.connect(pool.url)
        to = release(self.STEP)
        done = await asyncio.gather(labels(pool, to), labels(other, to))
        assert sorted(done) == [[], ["0100_index"]]
        await other.close()
