"""Pings of runs: a real worker, and a real HTTP server that records what a watching service would get."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from duly import Permanent, Snooze
from duly.api.documents import job_document
from duly.errors import InvalidInput
from duly.store.pool import Pool
from duly.worker import pings
from duly.worker.targets import making
from harness.endpoint import Call, Endpoint, reply, silence
from harness.processes import Spawn
from harness.waiting import eventually
from harness.worker import Workbench


class _Anywhere(dict[str, Any]):
    """The same answers for every path."""

    def get(self, path: str, default: Any = None) -> Any:
        return self["*"]


@pytest.fixture
async def watcher() -> AsyncIterator[Endpoint]:
    """A watching service on loopback that answers every request."""
    async with Endpoint.serving() as endpoint:
        endpoint.answers = _Anywhere({"*": [reply(200, "OK")]})
        yield endpoint


@pytest.fixture
def bench(bench: Workbench) -> Workbench:
    bench.settings = bench.settings.model_copy(update={"egress_allow": "127.0.0.1", "allow_commands": True})
    return bench


def words(calls: list[Call]) -> list[str]:
    """The last part of each path: start, fail, log, an exit status, or the check itself."""
    return [urlsplit(call.path).path.rpartition("/")[2] for call in calls]


def rids(calls: list[Call]) -> set[str]:
    return {parse_qs(urlsplit(call.path).query)["rid"][0] for call in calls}


async def test_a_run_tells_its_start_and_its_end_and_the_end_after_it_was_recorded(
    bench: Workbench, watcher: Endpoint
) -> None:
    statuses: list[str] = []

    async def note_status(call: Call, writer: asyncio.StreamWriter) -> None:
        statuses.append((await bench.run_of(job_id)).status)
        writer.write(reply(200, "OK"))
        await writer.drain()

    watcher.answers = _Anywhere({"*": [note_status]})

    @bench.app.task()
    async def work() -> None:
        pass

    job_id = await bench.submit(work, ping_url=watcher.url("/key/nightly"))
    async with bench.working():
        await bench.succeeded(job_id)
    assert words(watcher.calls) == ["start", "nightly"]
    assert statuses[-1] == "succeeded"
    assert len(rids(watcher.calls)) == 1


async def test_each_outcome_tells_its_own(bench: Workbench, watcher: Endpoint) -> None:
    @bench.app.task(max_retries=1, retry_backoff="immediate")
    def shaky(why: str) -> None:
        raise ValueError(f"the password is {why}")

    @bench.app.task()
    async def hopeless() -> None:
        raise Permanent("no")

    snoozed: list[int] = []

    @bench.app.task()
    async def later() -> None:
        if not snoozed:
            snoozed.append(1)
            raise Snooze(0)

    async def heard(name: str, count: int) -> list[Call]:
        await eventually(lambda: len([c for c in watcher.calls if c.path.startswith(f"/{name}")]) >= count)
        return [call for call in watcher.calls if call.path.startswith(f"/{name}")]

    async with bench.working():
        job_id = await bench.submit(shaky, {"why": "hunter2"}, ping_url=watcher.url("/shaky/it"))
        await bench.end_of(job_id)
        calls = await heard("shaky", 4)
        assert words(calls) == ["start", "log", "start", "fail"]
        assert len(rids(calls)) == 1
        assert b"attempt 1: ValueError; it is tried again" in calls[1].body
        # What an error says may be anybody's secret: only its type is sent.
        assert calls[3].body.endswith(b"attempt 2: ValueError")
        await bench.end_of(await bench.submit(hopeless, ping_url=watcher.url("/hopeless/it")))
        assert words(await heard("hopeless", 2)) == ["start", "fail"]
        await bench.end_of(await bench.submit(later, ping_url=watcher.url("/later/it")))
        assert words(await heard("later", 3)) == ["start", "start", "it"]
        command = await bench.command("sh", "-c", "exit 7", max_retries=0, ping_url=watcher.url("/command/it"))
        await bench.end_of(command)
        assert words(await heard("command", 2)) == ["start", "7"]


async def test_a_silent_service_delays_no_run_and_what_finds_no_place_is_counted(
    bench: Workbench, watcher: Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watcher.answers = _Anywhere({"*": [silence]})
    monkeypatch.setattr(pings, "MAX_PER_HOST", 20)
    monkeypatch.setattr(pings, "CLOSE_SECONDS", 0.1)

    @bench.app.task()
    async def work() -> None:
        pass

    jobs = [await bench.submit(work, ping_url=watcher.url("/key/nightly")) for _ in range(40)]
    with caplog.at_level(logging.WARNING, logger="duly.worker"):
        async with bench.working() as worker:
            for job_id in jobs:
                await bench.succeeded(job_id)
            assert worker._pings is not None
            assert worker._pings.dropped == 60
            assert watcher.connections <= pings.MAX_SENDING_PER_HOST
    assert worker._pings.sent == 0
    said = [record.message for record in caplog.records]
    assert sum("pings are dropped" in line for line in said) == 1
    assert any(line == "20 pings were not sent before this worker ended" for line in said)
    assert not any("nightly" in line for line in said)


async def test_a_dead_service_is_tried_again_and_complained_about_once_and_a_live_one_is_not_held_up(
    bench: Workbench, watcher: Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pings, "PAUSES", (0.01, 0.01))

    @bench.app.task()
    async def work() -> None:
        pass

    async with Endpoint.serving() as other:
        other.answers = _Anywhere({"*": [reply(503), reply(502), reply(200, "OK")]})
        dead = watcher.url("/secret-key").replace(str(watcher.port), "1")
        with caplog.at_level(logging.WARNING, logger="duly.worker"):
            async with bench.working() as worker:
                for url in (dead, dead, watcher.url("/live"), other.url("/other")):
                    await bench.succeeded(await bench.submit(work, ping_url=url))
                assert worker._pings is not None
        assert (worker._pings.failed, worker._pings.sent) == (4, 4)
        assert words(watcher.calls) == ["start", "live"]
        assert words(other.calls) == ["start", "start", "start", "other"]
    said = [record.message for record in caplog.records]
    assert [line for line in said if "was not delivered" in line] == [
        "a ping to http://127.0.0.1:1/*** was not delivered: the connection failed (ConnectError)"
    ]


async def test_the_pings_of_a_run_keep_their_order_when_the_service_is_slow_to_answer_one(
    bench: Workbench, watcher: Endpoint
) -> None:
    answered: list[str] = []
    ended = asyncio.Event()

    async def answer(call: Call, writer: asyncio.StreamWriter) -> None:
        word = words([call])[0]
        if word == "start":
            await ended.wait()
        answered.append(word)
        writer.write(reply(200, "OK"))
        await writer.drain()

    watcher.answers = _Anywhere({"*": [answer]})

    @bench.app.task()
    async def work() -> None:
        pass

    async with bench.working():
        await bench.succeeded(await bench.submit(work, ping_url=watcher.url("/key/nightly")))
        await eventually(lambda: len(watcher.calls) == 1)
        ended.set()
    assert answered == ["start", "nightly"]


async def test_private_addresses_are_refused_unless_allowed(
    bench: Workbench, watcher: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    bench.settings = bench.settings.model_copy(update={"egress_allow": ""})

    @bench.app.task()
    async def work() -> None:
        pass

    with caplog.at_level(logging.WARNING, logger="duly.worker"):
        async with bench.working():
            await bench.succeeded(await bench.submit(work, ping_url=watcher.url("/key")))
    assert watcher.connections == 0
    assert "a loopback address" in caplog.text


async def test_a_worker_without_the_extra_says_so_once_and_runs_go_on(
    bench: Workbench, watcher: Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(making, "find_spec", lambda name: None)

    @bench.app.task()
    async def work() -> None:
        pass

    with caplog.at_level(logging.WARNING, logger="duly.worker"):
        async with bench.working():
            for _ in range(2):
                await bench.succeeded(await bench.submit(work, ping_url=watcher.url("/key")))
    assert caplog.text.count("this worker sends no pings") == 1
    assert watcher.connections == 0


async def test_the_address_is_shown_without_its_key_and_what_was_shown_is_not_taken_back(
    bench: Workbench, watcher: Endpoint, pool: Pool
) -> None:
    job_id = await bench.submit("h", schedule="@yearly", ping_url="https://hc-ping.com/my-key/nightly")
    job = await bench.operations.jobs.get(job_id)
    assert job.policy.ping_url == "https://hc-ping.com/my-key/nightly"
    assert job_document(job)["ping_url"] == "https://hc-ping.com/***"
    with pytest.raises(InvalidInput, match="hidden secret"):
        await bench.operations.jobs.change(job_id, {"ping_url": job_document(job)["ping_url"]})
    await bench.operations.jobs.change(job_id, {"ping_url": None})
    details = await pool.query("select detail::text from duly.job_changes where job_id = $1", job.job_id)
    assert [json.loads(row["detail"])["old"] for row in details if row["detail"]] == [
        {"ping_url": "https://hc-ping.com/***"}
    ]


async def test_a_worker_process_sends_what_still_waits_before_it_ends(
    bench: Workbench, watcher: Endpoint, spawn: Spawn
) -> None:
    job_id = await bench.submit("record", {"seconds": 0}, ping_url=watcher.url("/key/nightly"))
    process = spawn("worker", settings={"DULY_EGRESS_ALLOW": "127.0.0.1", "DULY_LOG_LEVEL": "INFO"})
    await bench.succeeded(job_id)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 20) == 0
    assert words(watcher.calls) == ["start", "nightly"]
