"""The dead man's switch: real schedulers ping a real server while all is well, and stop when it is not."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from duly.config import Settings
from duly.maintenance import deadman
from duly.maintenance.deadman import Deadman
from duly.node import SchedulerNode, running_scheduler, running_worker
from duly.store.pool import Pool
from duly.worker.handler.task import Task
from harness.endpoint import Endpoint, reply, silence
from harness.processes import Spawn
from harness.store import due_job, put, put_now
from harness.waiting import eventually

SECRET = "s3cr3t-uuid"
PATH = f"/ping/{SECRET}?k={SECRET}"
INTERVAL = 0.1


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with Endpoint.serving() as endpoint:
        endpoint.on(PATH, reply(200, "OK"))
        yield endpoint


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    caplog.set_level(logging.DEBUG)
    yield caplog
    assert SECRET not in caplog.text


@asynccontextmanager
async def scheduling(pool: Pool, settings: Settings, url: str, *, late: float = 0.5) -> AsyncIterator[SchedulerNode]:
    changed = settings.changed(deadman_url=url, deadman_seconds=INTERVAL, deadman_late_seconds=late)
    async with running_scheduler(pool, changed) as node:
        yield node


async def more(endpoint: Endpoint, pings: int = 2) -> None:
    """Returns when that many pings have come from now on."""
    wanted = len(endpoint.calls) + pings
    await eventually(lambda: len(endpoint.calls) >= wanted)


async def said(log: pytest.LogCaptureFixture, text: str, times: int = 1) -> None:
    await eventually(lambda: sum(text in line for line in messages(log)) >= times)
    assert sum(text in line for line in messages(log)) == times


def messages(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.name == "duly.deadman"]


async def no_more(endpoint: Endpoint, looks: int = 8) -> None:
    """None comes for several intervals; one may have been on its way."""
    await asyncio.sleep(2 * INTERVAL)
    before = len(endpoint.calls)
    await asyncio.sleep(looks * INTERVAL)
    assert len(endpoint.calls) == before


async def test_pings_stop_while_shards_have_no_leader_and_come_back(
    pool: Pool, settings: Settings, endpoint: Endpoint, log: pytest.LogCaptureFixture
) -> None:
    async with scheduling(pool, settings, endpoint.url(PATH)):
        await more(endpoint)
        assert {(call.method, call.headers["host"]) for call in endpoint.calls} == {
            ("GET", f"127.0.0.1:{endpoint.port}")
        }
        # Nobody can take this shard while the trigger stands.
        await pool.query("""
            create function refuse() returns trigger language plpgsql as
            'begin if new.node_id is not null then return null; end if; return new; end'
        """)
        await pool.query("""
            create trigger refuse before update on duly.shards
            for each row when (new.shard = 5) execute function refuse()
        """)
        await pool.query("update duly.shards set node_id = null, epoch = epoch + 1 where shard = 5")
        await said(log, "no more pings to http://127.0.0.1")
        assert "1 shards have no leader" in messages(log)[-1]
        await no_more(endpoint)
        await pool.query("drop trigger refuse on duly.shards")
        await more(endpoint)
    assert [line.partition(":")[0] for line in messages(log)] == [
        "all is well", "no more pings to http", "all is well", "no more pings from this scheduler",
    ]  # fmt: skip


async def test_pings_stop_while_a_due_job_does_not_fire_and_come_back(
    pool: Pool, settings: Settings, endpoint: Endpoint, log: pytest.LogCaptureFixture
) -> None:
    job = due_job(pool, pool.clock.now() + timedelta(seconds=1.5))
    await put(pool, job)
    async with scheduling(pool, settings, endpoint.url(PATH)):
        # A transaction that holds the job's row: no fire waits for it.
        async with pool.transaction() as stranger:
            await stranger.connection.execute("select from duly.jobs where job_id = $1 for update", job.job_id)
            await more(endpoint)
            await said(log, "a due job is ")
            await no_more(endpoint)
        await more(endpoint)
    await said(log, "all is well", 2)


async def test_pings_stop_while_runs_wait_and_no_worker_lives_and_come_back(
    pool: Pool, settings: Settings, endpoint: Endpoint, log: pytest.LogCaptureFixture
) -> None:
    async def noop() -> None: ...

    async with scheduling(pool, settings, endpoint.url(PATH)):
        await more(endpoint)
        await put_now(pool, 1)
        await said(log, "and no worker lives")
        await no_more(endpoint)
        async with running_worker(pool, {"noop": Task("noop", noop)}, settings):
            await more(endpoint)
        await more(endpoint)  # without a worker, but nothing waits
    await said(log, "all is well", 2)


async def test_a_run_that_waits_is_no_reason_while_a_worker_lives(
    pool: Pool, settings: Settings, endpoint: Endpoint
) -> None:
    await put_now(pool, 1, queue="unserved")
    await pool.query("update duly.runs set run_at = run_at - interval '1 hour'")
    async with running_worker(pool, {}, settings), scheduling(pool, settings, endpoint.url(PATH)):
        await more(endpoint, 4)


async def test_pings_end_with_a_killed_scheduler_and_go_on_with_the_next(spawn: Spawn, endpoint: Endpoint) -> None:
    settings = {"DULY_DEADMAN_URL": endpoint.url(PATH), "DULY_DEADMAN_SECONDS": str(INTERVAL)}
    first = spawn("scheduler", settings=settings)
    await more(endpoint)
    first.kill()
    first.wait()
    await no_more(endpoint)
    spawn("scheduler", settings=settings)
    await more(endpoint)


async def test_of_two_schedulers_one_pings(pool: Pool, settings: Settings, endpoint: Endpoint) -> None:
    other = endpoint.on("/other", reply(200))
    async with scheduling(pool, settings, endpoint.url(PATH)) as first:
        async with scheduling(pool, settings, other) as second:
            await eventually(lambda: len(first.coordinator.terms) == len(second.coordinator.terms) == 32)
            await more(endpoint)  # one may have been on its way while the shards moved
            before = len(endpoint.calls)
            await more(endpoint, 5)
            leading = PATH if 0 in first.coordinator.terms else "/other"
            assert {call.path for call in endpoint.calls[before:]} == {leading}
        await more(endpoint)
        assert endpoint.calls[-1].path == PATH


async def test_a_server_that_refuses_or_hangs_is_named_once_without_the_secret_and_holds_up_nothing(
    pool: Pool, settings: Settings, endpoint: Endpoint, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadman, "REQUEST_SECONDS", 0.3)
    endpoint.on(PATH, reply(500), reply(404), reply(200), silence)
    async with scheduling(pool, settings, endpoint.url(PATH)):
        await said(log, "did not take a ping: no answer within 0.3 s")
        monkeypatch.setattr(deadman, "REQUEST_SECONDS", 60.0)
        await more(endpoint, 1)
        stopping = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - stopping < 2.5
    assert [line.partition(" ")[2] for line in messages(log)][:3] == [
        "did not take a ping: it answered 500; trying again",
        f"is well: pinging http://127.0.0.1:{endpoint.port}/*** every 0.1 s",
        "did not take a ping: no answer within 0.3 s; trying again",
    ]


async def switch(pool: Pool, url: str) -> Deadman:
    made = Deadman(pool, url, interval=60, late_seconds=60)
    made.lead(True)
    return made


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 2", b"x" * 100_000])
async def test_what_is_no_answer_of_http_does_not_count(pool: Pool, endpoint: Endpoint, answer: bytes) -> None:
    async def speak(_: object, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    made = await switch(pool, endpoint.on("/", speak))
    assert (await made._ping() or "").startswith(("ValueError", "ConnectionResetError"))


async def test_a_port_that_is_closed_and_a_host_that_does_not_exist_are_reasons(pool: Pool) -> None:
    for url in ("http://127.0.0.1:9/", "http://no.such.host.invalid/"):
        assert await (await switch(pool, url))._ping()


async def test_over_tls_the_certificate_is_checked(pool: Pool) -> None:
    pem = Path(__file__).parents[1] / "harness/localhost.pem"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    async with Endpoint.serving(tls=context, host="localhost") as endpoint:
        made = await switch(pool, endpoint.on("/", reply(204)))
        assert "certificate" in (await made._ping() or "").lower()
        made._tls = ssl.create_default_context(cafile=pem)
        assert await made._ping() is None


async def test_a_store_that_does_not_answer_is_a_reason(pool: Pool, settings: Settings, endpoint: Endpoint) -> None:
    own = await Pool.connect(settings.database_url or "", size=1)
    made = await switch(own, endpoint.on("/", reply(200)))
    async with running_scheduler(pool, settings) as node:
        await eventually(lambda: len(node.coordinator.terms) == 64)
        assert await made.run_once() is None
        assert len(endpoint.calls) == 1
        await own.close()
        assert [await made.run_once() for _ in range(2)] == [2.0, 5.0]
    assert len(endpoint.calls) == 1


async def test_a_moment_without_a_leader_is_not_worth_a_word(
    pool: Pool, endpoint: Endpoint, log: pytest.LogCaptureFixture, settings: Settings
) -> None:
    made = await switch(pool, endpoint.on("/", reply(200)))
    assert await made.run_once() == 2.0  # nobody leads yet
    async with running_scheduler(pool, settings) as node:
        await eventually(lambda: len(node.coordinator.terms) == 64)
        assert await made.run_once() is None
    assert [line.partition(":")[0] for line in messages(log)] == ["all is well"]
