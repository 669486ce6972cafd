"""Passing errors of a healthy database: nothing is parked, lost or recorded twice, and everything goes on by itself.

Jobs go through every turn of their lives, with a whole scheduler, a worker and the API in this process, while every
class of error is injected at every statement: before it, after it, and in place of its answer. A seed decides where.
For a longer test:

    DULY_TEST_ERRORS_SECONDS=600 pytest tests/store/test_server_errors.py -k random -s
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import httpx
import pytest

from conftest import Server
from duly import Context, Duly, Snooze
from duly.api.server import create_app
from duly.config import Settings
from duly.errors import DataRefused, StoreUnavailable
from duly.maintenance.unparker import Unparker
from duly.model import DEFAULT_TENANT, JobRequest, Policy, parse_run_id
from duly.node import running_scheduler, running_worker
from duly.operations import Operations, StoreOperations
from duly.store.pool import Pool
from duly.store.statements import statement
from harness.injecting import DATA, OTHERS, Injector, injected
from harness.proxy import Proxy
from harness.scheduler import SECOND, START, FrozenScheduler
from harness.store import count, due_job, put_now, take
from harness.waiting import drawn_seed, eventually

T = TypeVar("T")

SECONDS = float(os.environ.get("DULY_TEST_ERRORS_SECONDS", "0"))
# In these statements refused data are blamed on a job; elsewhere they are one more error.
BLAMING = (
    "fires/",
    "sql_submits/write_plans",
    "runs/complete",
    "runs/requeue",
    "runs/bury",
    "runs/expire",
    "ledger/",
    "progress/",
    "copy",
    "commit",
)
PATIENT = Policy(max_retries=30, retry_backoff="immediate", overlap="parallel", missed_window="RUN_ALL")


def spared(name: str, state: str) -> bool:
    return state in DATA and name.startswith(BLAMING) and not name.startswith("fires/park")


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Repeats a call that fails for a passing reason until it succeeds, as a determined caller does."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await call()
            except (StoreUnavailable, DataRefused):
                await asyncio.sleep(0.05)


class Life:
    def __init__(self, pool: Pool, settings: Settings, injector: Injector) -> None:
        self.pool = pool
        self.settings = settings
        self.injector = injector
        self.app = Duly(settings=settings)
        self.begun: Counter[str] = Counter()
        self.expected: dict[UUID, tuple[str, int]] = {}
        self._tasks()

    def _tasks(self) -> None:
        app, begun = self.app, self.begun

        @app.task()
        async def fine(ctx: Context) -> dict[str, int]:
            begun[ctx.run_id] += 1
            ctx.progress(0.5, "half")
            await asyncio.sleep(0.01)
            return {"n": 1}

        @app.task()
        async def late(ctx: Context) -> None:
            if ctx.run_id not in begun:
                begun[ctx.run_id] = 0
                raise Snooze(0.05)
            begun[ctx.run_id] += 1

        @app.task()
        async def bad(ctx: Context) -> None:
            raise ValueError("bad")

        @app.task()
        async def write(ctx: Context) -> None:
            async with ctx.transaction() as connection:
                await connection.execute("insert into public.effects values ($1)", ctx.run_id)

    async def submit(
        self, operations: Operations, task: str, runs: int = 1, *, status: str = "succeeded", **fields: Any
    ) -> str:
        fields = {"policy": PATIENT} | fields
        key = f"{task}-{len(self.expected)}"
        request = JobRequest(task, dedupe_key=key, **fields)
        done = await insist(lambda: operations.submit(request, allow_unknown_handler=True))
        self.expected[UUID(str(done.job_id))] = (status, runs)
        return str(done.job_id)

    async def live(self, clean: Pool) -> None:
        """Lets the jobs live. `clean` is a pool without errors, which prepares the store and looks at it."""
        pool, settings, injector = self.pool, self.settings, self.injector
        await clean.query("create table public.effects (run_id text)")
        # A worker that is gone: rescue takes its runs back.
        ghosts = await put_now(clean, 2, handler="fine", queue="ghost", policy='{"max_retries": 30}')
        await take(clean, limit=2, queues=["ghost"], lease=0.5)
        self.expected |= {ghost.job_id: ("succeeded", 1) for ghost in ghosts}

        store_operations = await insist(lambda: StoreOperations.open(pool, settings))
        operations = store_operations.for_tenant(DEFAULT_TENANT)
        chance, injector.chance = injector.chance, 0.0
        async with (
            running_scheduler(pool, settings) as scheduler,
            running_worker(pool, self.app.tasks, settings, queues=("default", "ghost"), concurrency=8),
        ):
            await eventually(lambda: len(scheduler.firer.backlog.shards) > 0)
            injector.chance = chance
            submit = self.submit
            now = pool.clock.now()
            for _ in range(3):
                await submit(operations, "fine")
            await submit(operations, "late")
            own = Policy(max_retries=30, retry_backoff="immediate", idempotency_key_template="own:{{job_id}}")
            await submit(operations, "fine", policy=own)
            await submit(operations, "write")
            dead = await submit(
                operations, "bad", status="dead", policy=Policy(max_retries=1, retry_backoff="immediate")
            )
            await submit(operations, "fine", schedule=now + timedelta(seconds=1))
            await submit(operations, "fine", 3, schedule="every 1s", max_runs=3)
            await submit(operations, "fine", 3, schedule="every 1s", max_runs=3, policy=Policy(
                max_retries=30, retry_backoff="immediate", overlap="queue", missed_window="RUN_ALL", max_queued=50,
            ))  # fmt: skip
            by_sql = await clean.query(
                "select duly.submit('fine', schedule => 'every 1s', max_runs => 2, allow_unknown_handler => true, "
                """policy => '{"max_retries": 30, "overlap": "parallel", "missed_window": "RUN_ALL"}') as job_id"""
            )
            self.expected[by_sql[0]["job_id"]] = ("succeeded", 2)
            hourly = await submit(operations, "fine", 1, schedule="every 1h")
            await self._handle(operations, hourly)
            away = await submit(operations, "fine", 0, schedule=now + timedelta(hours=1))
            await self._settle(lambda: operations.jobs.cancel(away), clean, away, "cancelled")
            await self._ask(store_operations, hourly)

            await self._all_end(clean)
            injector.chance = chance
            letters = await insist(lambda: operations.dead_letters.page())
            assert [str(letter.job_id) for letter in letters.items] == [dead]
            await clean.query("delete from duly.attempts where job_id = $1", UUID(dead))
            await self._redrive(operations, clean, letters.items[0].run_id)
            await self._all_end(clean)
            injector.chance = 0.0
            await eventually(lambda: self._quiet(clean), seconds=30)
        await self._check(clean)
        await self.app.close()

    async def _handle(self, operations: Operations, job_id: str) -> None:
        """Pauses, resumes, changes and triggers a job as people do, each as often as it takes."""

        async def done(call: Callable[[], Awaitable[Any]], status: str) -> None:
            while (await insist(lambda: operations.jobs.get(job_id))).status != status:
                try:
                    await call()
                except (StoreUnavailable, DataRefused):
                    await asyncio.sleep(0.02)

        await done(lambda: operations.jobs.pause(job_id), "paused")
        await done(lambda: operations.jobs.resume(job_id), "active")
        await insist(lambda: operations.jobs.change(job_id, {"priority": 7}))
        before = len((await insist(lambda: operations.runs.page(job_id))).items)
        while len((await insist(lambda: operations.runs.page(job_id))).items) == before:
            try:
                await operations.jobs.trigger(job_id)
            except (StoreUnavailable, DataRefused):
                await asyncio.sleep(0.02)

    async def _settle(self, call: Callable[[], Awaitable[Any]], clean: Pool, job_id: str, status: str) -> None:
        while not await count(clean, "jobs", "job_id = $1 and status = $2", UUID(job_id), status):
            try:
                await call()
            except (StoreUnavailable, DataRefused):
                await asyncio.sleep(0.02)

    async def _redrive(self, operations: Operations, clean: Pool, run_id: str) -> None:
        """Redrives a run until its letter is gone or replaced by a newer one."""
        first = (await insist(lambda: operations.dead_letters.get(run_id))).buried_at
        while await count(clean, "dead_letters", "buried_at = $1", first):
            try:
                await operations.dead_letters.redrive(run_id)
            except (StoreUnavailable, DataRefused):
                await asyncio.sleep(0.02)

    async def _ask(self, store_operations: StoreOperations, job_id: str) -> None:
        """Reads everything over HTTP: each request gets an answer, or is told to try again."""
        transport = httpx.ASGITransport(app=create_app(store_operations), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            for path in (
                "/api/v1/jobs", f"/api/v1/jobs/{job_id}", f"/api/v1/jobs/{job_id}/runs", "/api/v1/dead-letters",
                f"/api/v1/jobs/{job_id}/explain", "/api/v1/stats", "/metrics", "/readyz", "/live",
                f"/api/v1/jobs/{job_id}/occurrences", "/api/v1/forecast",
            ):  # fmt: skip
                for _ in range(20):
                    answer = await http.get(path)
                    if answer.status_code != 503:
                        break
                    assert answer.headers["retry-after"]
                    await asyncio.sleep(0.02)
                assert answer.status_code in (200, 404) or any(state in DATA for state in self.injector.states), path

    async def _all_end(self, clean: Pool) -> None:
        try:
            await eventually(lambda: self._ended(clean), seconds=60)
        except TimeoutError:
            print(f"expected: {self.expected}")
            for table in ("history", "runs", "claims", "catch_ups", "sql_submits", "parked"):
                for row in await clean.query(f"select * from duly.{table}"):
                    print(table, dict(row))
            raise

    async def _ended(self, clean: Pool) -> bool:
        self._stop_in_time()
        return await count(clean, "history", "status in ('succeeded', 'dead')") == sum(
            runs for _, runs in self.expected.values()
        )

    _since = 0.0

    def _stop_in_time(self) -> None:
        """Ends the errors after 4 s: they pass, and everything that they hit must go on."""
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since > 4:
            self.injector.chance = 0.0

    async def _quiet(self, clean: Pool) -> bool:
        return not sum(
            [await count(clean, table) for table in ("runs", "claims", "catch_ups", "sql_submits", "parked")]
        )

    async def _check(self, clean: Pool) -> None:
        rows = await clean.query("select job_id, status, count(*)::int as runs from duly.history group by 1, 2")
        found = {row["job_id"]: (row["status"], row["runs"]) for row in rows}
        assert found == {job_id: end for job_id, end in self.expected.items() if end[1]}
        assert await count(clean, "jobs", "status = 'paused' or status_reason is not null") == 0
        assert await count(clean, "job_changes", "what in ('parked', 'repaired')") == 0
        assert await count(clean, "history", "result::text like '%Unstorable%' or error::text like '%Unstorable%'") == 0
        effects = await clean.query("select run_id, count(*)::int as times from public.effects group by 1")
        assert [row["times"] for row in effects] == [1]
        # A handler is called a second time only if the first call was lost with its lease.
        lost = await clean.query(
            "select job_id, count(*)::int as times from duly.attempts where error ->> 'type' = 'LeaseLost' group by 1"
        )
        again: Counter[UUID] = Counter({row["job_id"]: row["times"] for row in lost})
        twice = {run_id: times for run_id, times in self.begun.items() if times > 1}
        for run_id, times in twice.items():
            parsed = parse_run_id(run_id)
            assert parsed is not None
            assert times <= 1 + again[parsed[0]], f"{run_id} began {times} times"


@asynccontextmanager
async def a_store(server: Server, name: str) -> AsyncIterator[str]:
    connection = await asyncpg.connect(server.url)
    await connection.execute(f"create database {name} template template_duly")
    try:
        yield server.database_url(name)
    finally:
        await connection.execute(f"drop database {name} with (force)")
        await connection.close()


@pytest.mark.search
@pytest.mark.timeout(SECONDS + 180)
async def test_random_errors_at_all_statements_park_lose_and_double_nothing(server: Server, settings: Settings) -> None:
    seed = drawn_seed("DULY_TEST_ERRORS_SEED")
    until = time.monotonic() + (SECONDS or 5)
    pairs: set[tuple[str, str, str]] = set()
    lives = 0
    while not lives or time.monotonic() < until:
        print(f"seed {seed}")
        dice = random.Random(seed)
        injector = Injector(dice, chance=dice.choice([0.05, 0.15, 0.4]), spared=spared, states=(*OTHERS, *DATA))
        async with a_store(server, f"errors_{os.getpid()}_{lives}") as url:
            own = settings.model_copy(update={"database_url": url, "worker_lease_seconds": 2.0})
            clean = await Pool.connect(url)
            try:
                with injected(injector):
                    pool = await insist(lambda at=url: Pool.connect(at, size=8))  # type: ignore[misc]
                    await Life(pool, own, injector).live(clean)
                    await pool.close()
            finally:
                await clean.close()
        pairs |= set(injector.struck)
        lives += 1
        seed += 1
    print(f"{lives} lives, {len(pairs)} different errors at {len({name for name, _, _ in pairs})} statements")


async def opened(url: str) -> Pool:
    return await Pool.connect(url, size=4)


@pytest.mark.parametrize("state", [*OTHERS[::4], "57014", "55P03", "42501", "40001", "53100"])
async def test_a_fire_that_failed_for_no_fault_of_its_jobs_is_made_up_for(database_url: str, state: str) -> None:
    with injected(Injector(random.Random(0))) as injector:
        pool = await opened(database_url)
        try:
            scheduler = FrozenScheduler(pool)
            jobs = [due_job(pool, START + SECOND) for _ in range(3)]
            await scheduler.put(*jobs)
            await scheduler.lead(*jobs)
            await scheduler.loader.run_once()
            for name in ("fires/on_time", "fires/fire"):
                # A statement that only lost a race is tried again by the pool itself, so it fails more often here.
                injector.strike(name, state, times=6 if state in ("40001", "40P01") else 2)
            await scheduler.at(START + SECOND)
            for _ in range(4):
                with suppress(StoreUnavailable):
                    await scheduler.firer.run_once()
            assert injector.struck
            assert await scheduler.runs() == [START + SECOND] * 3
            assert await count(pool, "parked") == await count(pool, "jobs", "status = 'paused'") == 0
        finally:
            await pool.close()


async def test_a_job_whose_data_are_refused_is_parked_alone_and_tried_again_ever_more_rarely(database_url: str) -> None:
    with injected(Injector(random.Random(0))) as injector:
        pool = await opened(database_url)
        try:
            scheduler = FrozenScheduler(pool)
            # A one-off job, which keeps its occurrence while it is parked.
            job = due_job(pool, START + SECOND, kind="once", schedule="2030-05-05T12:00:01Z")
            await scheduler.put(job)
            await scheduler.lead(job)
            unparker = Unparker(pool)
            unparker.lead(True)
            now, waits = START + SECOND, []
            for _ in range(4):
                injector.strike("fires/on_time", "23514")
                injector.strike("fires/fire", "23514")
                await scheduler.step(now)
                row = await scheduler.job(job)
                assert row["status"] == "paused"
                assert row["status_reason"].startswith("cannot be fired: injected")
                [parked] = await pool.query("select retry_at - parked_at as wait, retry_at from duly.parked")
                waits.append(parked["wait"])
                await scheduler.at(parked["retry_at"] - SECOND)
                await unparker.run_once()
                assert (await scheduler.job(job))["status"] == "paused"
                now = parked["retry_at"]
                await scheduler.at(now)
                await unparker.run_once()
                assert (await scheduler.job(job))["status"] == "active"
            assert waits == [timedelta(minutes=4 * 2**n) for n in range(4)]
            injector._orders.clear()
            await scheduler.step(now)
            assert len(await scheduler.runs(job)) == 1
            # The row in duly.parked stays until the unparker finds that the job went on.
            await unparker.run_once()
            assert await count(pool, "parked") == 0
        finally:
            await pool.close()


@pytest.mark.parametrize("state", ["55P03", "57014", "42501", "54000", "XX000", "28P01", "40P01", "25006", "P0001"])
async def test_the_api_says_that_it_is_worth_another_try(database_url: str, settings: Settings, state: str) -> None:
    with injected(Injector(random.Random(0))) as injector:
        pool = await opened(database_url)
        try:
            store_operations = await StoreOperations.open(pool, settings)
            transport = httpx.ASGITransport(app=create_app(store_operations), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                asked = {"name": "greet", "handler": "greet", "schedule": "now", "dedupe_key": "k"}
                injector.strike("jobs/submit", state, times=40)
                answer = await http.post("/api/v1/jobs?allow_unknown_handler=true", json=asked)
                assert (answer.status_code, answer.headers.get("retry-after")) == (503, "5")
                injector._orders.clear()
                answer = await http.post("/api/v1/jobs?allow_unknown_handler=true", json=asked)
                assert answer.status_code == 201, answer.text
                injector.strike("jobs/list", state, times=6)
                assert (await http.get("/api/v1/jobs")).status_code == 503
        finally:
            await pool.close()


async def test_a_password_that_is_being_changed_is_a_passing_error(server: Server, settings: Settings) -> None:
    """The login is refused because the role is set to NOLOGIN: the tests' server asks for no password."""
    name = f"errors_{os.getpid()}_login"
    async with a_store(server, name) as url:
        admin = await asyncpg.connect(url)
        pool = None
        try:
            await admin.execute(f"create role {name} superuser login")
            pool = await Pool.connect(url.replace("//duly@", f"//{name}@"), size=2)
            store_operations = await StoreOperations.open(pool, settings)
            transport = httpx.ASGITransport(app=create_app(store_operations), raise_app_exceptions=False)
            await admin.execute(f"alter role {name} nologin")
            await pool._pool.expire_connections()
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                answer = await http.post(
                    "/api/v1/jobs?allow_unknown_handler=true",
                    json={"name": "greet", "handler": "greet", "schedule": "now"},
                )
                assert (answer.status_code, answer.headers.get("retry-after")) == (503, "5")
                await admin.execute(f"alter role {name} login")
                answer = await http.post(
                    "/api/v1/jobs?allow_unknown_handler=true",
                    json={"name": "greet", "handler": "greet", "schedule": "now"},
                )
                assert answer.status_code == 201
        finally:
            if pool is not None:
                await pool.close()
            await admin.execute(f"drop role {name}")
            await admin.close()


@pytest.mark.parametrize("state", ["55P03", "57014", "25006", "XX000", "40001"])
async def test_errors_on_the_wire_cost_no_run(database_url: str, pool: Pool, settings: Settings, state: str) -> None:
    """The errors come in the protocol here, so that the driver itself sees them."""
    begun: Counter[str] = Counter()
    with Proxy(database_url) as proxy:
        app = Duly(settings=settings)

        @app.task()
        async def fine(ctx: Context) -> int:
            begun[ctx.run_id] += 1
            return 1

        far = await Pool.connect(proxy.url, size=4)
        try:
            operations = (await StoreOperations.open(far, settings)).for_tenant(DEFAULT_TENANT)
            own = settings.model_copy(update={"database_url": proxy.url})
            faults = [
                proxy.answer(statement(name), state, times=2)
                for name in (
                    "runs/claim",
                    "runs/complete",
                    "fires/due",
                    "fires/on_time",
                    "runs/heartbeat",
                    "cluster/beat",
                )
            ]
            async with running_scheduler(far, own), running_worker(far, app.tasks, own):
                at = far.clock.now() + timedelta(seconds=1)
                for schedule in ("now", "now", at, at):
                    request = JobRequest("fine", schedule=schedule)
                    await insist(lambda asked=request: operations.submit(asked, allow_unknown_handler=True))  # type: ignore[misc]

                async def ended() -> bool:
                    return await count(pool, "history", "status = 'succeeded' and attempt = 1") == 4

                await eventually(ended)
            assert sum(fault.struck for fault in faults) >= 8
            assert set(begun.values()) == {1}
            assert len(begun) == 4
            assert await count(pool, "parked") == 0
        finally:
            await far.close()
            await app.close()


@pytest.mark.parametrize(("name", "when"), [("runs/complete", "before"), ("commit", "before"), ("commit", "lost")])
async def test_a_record_in_the_handlers_own_transaction_that_failed_for_a_passing_reason_costs_no_attempt(
    database_url: str, settings: Settings, name: str, when: str
) -> None:
    with injected(Injector(random.Random(0))) as injector:
        pool = await opened(database_url)
        app = Duly(settings=settings)
        try:
            await pool.query("create table public.effects (run_id text)")

            @app.task(max_retries=0)
            async def write(ctx: Context) -> None:
                async with ctx.transaction() as connection:
                    await connection.execute("insert into public.effects values ($1)", ctx.run_id)
                    if not injector.struck:
                        injector.strike(name, "55P03", when)

            operations = (await StoreOperations.open(pool, settings)).for_tenant(DEFAULT_TENANT)
            await operations.submit(app.request("write"), allow_unknown_handler=True)
            async with running_worker(pool, app.tasks, settings):

                async def ended() -> bool:
                    return await count(pool, "history") == 1

                await eventually(ended)
            assert injector.struck[name, "55P03", when] == 1
            assert await count(pool, "history", "status = 'succeeded' and attempt = 1") == 1
            assert (await pool.query("select count(*)::int as rows from public.effects"))[0]["rows"] == 1
        finally:
            await app.close()
            await pool.close()
