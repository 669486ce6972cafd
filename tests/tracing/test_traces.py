"""Traces across real processes: API, scheduler, worker, isolated child, and an endpoint that continues the trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from duly.client import AsyncClient
from duly.errors import ApiUnavailable
from harness.processes import HERE, Spawn
from harness.servers import free_port
from harness.waiting import eventually

TRACED = HERE / "traced"


@dataclass(frozen=True)
class Span:
    """A span of any of the processes, as its exporter wrote it."""

    pid: int
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str | None
    attributes: dict[str, Any]
    links: tuple[str, ...]
    status: str
    events: tuple[dict[str, Any], ...]


def spans_of(folder: Path) -> list[Span]:
    found = []
    for file in folder.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            span = json.loads(line)
            if span["name"].startswith(("fastapi.", "GET /api")):
                continue  # FastAPI's own
            found.append(
                Span(
                    pid=int(file.stem),
                    name=span["name"],
                    kind=span["kind"].removeprefix("SpanKind."),
                    trace_id=span["context"]["trace_id"][2:],
                    span_id=span["context"]["span_id"][2:],
                    parent_id=span["parent_id"] and span["parent_id"][2:],
                    attributes=span["attributes"],
                    links=tuple(link["context"]["span_id"][2:] for link in span["links"]),
                    status=span["status"]["status_code"],
                    events=tuple(span["events"]),
                )
            )
    return found


class Traced:
    """Duly's processes with the SDK, and this process as the submitter, with an SDK of its own."""

    def __init__(self, spawn: Spawn, folder: Path) -> None:
        self.folder = folder / "spans"
        self.folder.mkdir()
        self.settings = {
            "SPANS": str(self.folder),
            "PYTHONPATH": os.pathsep.join((str(TRACED), str(HERE))),
            "DULY_EGRESS_ALLOW": "127.0.0.1",
            "DULY_OPEN_API": "true",
        }
        self._spawn = spawn
        self.submitted = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.submitted))
        self.tracer = provider.get_tracer("submitter")
        self.port = 0

    def start(self, *commands: str, **settings: str) -> None:
        for command in commands:
            arguments: tuple[str, ...] = ()
            if command == "api":
                self.port = free_port()
                arguments = ("--port", str(self.port))
            elif command == "worker":
                arguments = ("--app", "traced_app:app")
            self._spawn(command, *arguments, settings={**self.settings, **settings})

    async def client(self) -> AsyncClient:
        client = AsyncClient(f"http://127.0.0.1:{self.port}", retries=None)

        async def answers() -> bool:
            try:
                await client.stats()
            except ApiUnavailable:
                return False
            return True

        await eventually(answers, seconds=40)
        return client

    def of(self, trace_id: str) -> list[Span]:
        return [span for span in spans_of(self.folder) if span.trace_id == trace_id]

    async def named(self, *names: str, seconds: float = 40) -> list[Span]:
        """All spans, once there is one of each of these names."""
        try:
            await eventually(lambda: set(names) <= {span.name for span in spans_of(self.folder)}, seconds=seconds)
        except TimeoutError:
            raise AssertionError(f"found only {sorted(span.name for span in spans_of(self.folder))}") from None
        return spans_of(self.folder)


@pytest.fixture
def traced(spawn: Spawn, tmp_path: Path) -> Traced:
    return Traced(spawn, tmp_path)


@pytest.fixture
def endpoint(traced: Traced) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, TRACED / "traced_endpoint.py"], env={**os.environ, **traced.settings}, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    yield f"http://127.0.0.1:{int(process.stdout.readline())}/orders"
    process.kill()
    process.wait()
    process.stdout.close()


def one(spans: list[Span], name: str) -> Span:
    (found,) = [span for span in spans if span.name == name]
    return found


async def test_one_trace_leads_from_the_submitter_through_every_process_to_the_endpoint(
    traced: Traced, endpoint: str
) -> None:
    traced.start("api", "scheduler", "worker")
    async with await traced.client() as client:
        token = context.attach(baggage.set_baggage("tenant", "acme"))
        try:
            with traced.tracer.start_as_current_span("order") as order:
                soon = client.now() + timedelta(seconds=1.5)
                job = await client.submit({"type": "http", "url": f"{endpoint}?key=hidden"}, {"n": 1}, run_at=soon)
                for task in ("coroutine", "thread", "child"):
                    await client.submit(task, queue="default", allow_unknown_handler=True)
        finally:
            context.detach(token)
        await traced.named("POST /orders?key=hidden", "work in coroutine", "work in thread", "work in child")
        await eventually(lambda: len([s for s in spans_of(traced.folder) if s.name == "process default"]) == 4)
        run = await anext(client.runs(job.job_id))

    trace_id = f"{order.get_span_context().trace_id:032x}"
    spans = traced.of(trace_id)
    # One trace, in which every span but the submitter's has its parent.
    assert {span.parent_id for span in spans} <= {span.span_id for span in spans} | {
        f"{order.get_span_context().span_id:016x}"
    }
    assert [(span.name, span.attributes) for span in spans_of(traced.folder) if span.trace_id != trace_id] == []
    fire, post, answer = one(spans, "fire default"), one(spans, "POST"), one(spans, "POST /orders?key=hidden")
    submit = next(span for span in spans if span.span_id == fire.parent_id)
    process = next(span for span in spans if span.span_id == post.parent_id)
    claims = [span for span in spans if span.name == "claim default"]
    claim = claims[0]
    assert answer.parent_id == post.span_id
    assert process.parent_id == submit.span_id
    assert {span.parent_id for span in claims} <= {span.span_id for span in spans if span.name == "submit default"}
    assert len({span.pid for span in (submit, fire, process, answer)}) == 4
    assert [span.kind for span in (submit, fire, claim, process, post, answer)] == [
        "PRODUCER", "PRODUCER", "CLIENT", "CONSUMER", "CLIENT", "SERVER",
    ]  # fmt: skip
    # The conventions of messaging, and of HTTP.
    expected = {
        "submit": ("send", submit), "fire": ("create", fire), "claim": ("receive", claim),
        "process": ("process", process),
    }  # fmt: skip
    for name, (kind, span) in expected.items():
        assert span.name == f"{name} default"
        assert span.attributes["messaging.system"] == "duly"
        assert span.attributes["messaging.operation.name"] == name
        assert span.attributes["messaging.operation.type"] == kind
        assert span.attributes["messaging.destination.name"] == "default"
    assert submit.attributes["duly.job.id"] == str(job.job_id)
    assert sum(span.attributes["messaging.batch.message_count"] for span in claims) == 4
    assert {span.attributes["messaging.message.id"] for span in (fire, process)} == {run.run_id}
    assert (process.attributes["duly.attempt"], process.attributes["duly.outcome"]) == (1, "succeeded")
    assert process.links == (submit.span_id,)
    assert post.attributes["http.response.status_code"] == 200
    assert post.attributes["url.full"] == f"{endpoint}?…"
    assert answer.attributes["baggage"] == "tenant=acme"
    # A handler's own spans are in its attempt, in a thread and in another process too.
    for where in ("coroutine", "thread", "child"):
        work = one(spans, f"work in {where}")
        assert next(span for span in spans if span.span_id == work.parent_id).name == "process default"
        assert work.attributes["ctx.trace_id"] == trace_id
        assert work.attributes["tenant"] == "acme"
    assert one(spans, "work in child").pid != one(spans, "work in thread").pid == process.pid


async def test_each_of_100_occurrences_begins_a_trace_of_its_own_that_links_to_the_submit(
    traced: Traced, database_url: str
) -> None:
    traced.start("api")
    async with await traced.client() as client:
        with traced.tracer.start_as_current_span("deploy") as deploy:
            job = await client.submit(
                "coroutine", schedule="* * * * * *", max_runs=100, missed_window="RUN_ALL", overlap="parallel",
                allow_unknown_handler=True,
            )  # fmt: skip
    connection = await asyncpg.connect(database_url)
    try:
        # It was due for the last two minutes.
        await connection.execute(
            "update duly.jobs set created_at = created_at - interval '1 h', updated_at = updated_at - interval '1 h', "
            "next_run_at = next_run_at - interval '120 s' where job_id = $1",
            job.job_id,
        )
    finally:
        await connection.close()
    traced.start("scheduler", "worker")
    await eventually(
        lambda: len([span for span in spans_of(traced.folder) if span.name == "process default"]) == 100, seconds=60
    )
    spans = spans_of(traced.folder)
    submit = one(spans, "submit default")
    assert submit.trace_id == f"{deploy.get_span_context().trace_id:032x}"
    processed = [span for span in spans if span.name == "process default"]
    assert len({span.trace_id for span in processed} - {submit.trace_id}) == 100
    assert {(span.parent_id, span.links) for span in processed} == {(None, (submit.span_id,))}
    by_trace = {span.trace_id: span for span in processed}
    work = [span for span in spans if span.name == "work in coroutine"]
    assert {by_trace[span.trace_id].span_id for span in work} == {span.parent_id for span in work}
    assert all(span.attributes["ctx.trace_id"] == span.trace_id for span in work)
    fired = [span for span in spans if span.name == "fire default"]
    assert fired
    assert {by_trace[span.trace_id].attributes["messaging.message.id"] for span in fired} == {
        span.attributes["messaging.message.id"] for span in fired
    }


async def test_attempts_are_spans_of_one_trace_with_the_masked_error_as_an_event(traced: Traced) -> None:
    traced.start("api", "worker")
    async with await traced.client() as client:
        with traced.tracer.start_as_current_span("order"):
            await client.submit(
                "stumbling", {"token": "s3cr3t-token"}, secret_fields=["token"], allow_unknown_handler=True
            )
    await eventually(lambda: len([s for s in spans_of(traced.folder) if s.name == "process default"]) == 2)
    first, second = sorted(
        (span for span in spans_of(traced.folder) if span.name == "process default"),
        key=lambda span: span.attributes["duly.attempt"],
    )
    assert (first.trace_id, first.parent_id) == (second.trace_id, second.parent_id)
    assert [span.attributes["duly.outcome"] for span in (first, second)] == ["retrying", "dead"]
    assert [span.attributes["error.type"] for span in (first, second)] == ["ValueError", "Permanent"]
    assert (first.status, second.status) == ("ERROR", "ERROR")
    (event,) = first.events
    assert event["name"] == "exception"
    assert event["attributes"]["exception.type"] == "ValueError"
    assert "is not known" in event["attributes"]["exception.message"]
    assert "stumbling" in event["attributes"]["exception.stacktrace"]
    assert not any("s3cr3t-token" in file.read_text() for file in traced.folder.glob("*.jsonl"))


async def test_who_is_not_sampled_leaves_nothing_and_has_no_spans(traced: Traced, database_url: str) -> None:
    """Neither for its jobs nor for the handlers' own spans, although the worker's sampler samples every root."""
    traced.start("api", "worker")
    async with await traced.client() as client:
        unsampled = trace.SpanContext(0x1234, 0x5678, is_remote=True, trace_flags=trace.TraceFlags(0))
        with trace.use_span(trace.NonRecordingSpan(unsampled)):
            quiet = await client.submit("thread", allow_unknown_handler=True)
        with traced.tracer.start_as_current_span("order"):
            loud = await client.submit("coroutine", allow_unknown_handler=True)
        for job in (quiet, loud):

            async def ended(job_id: Any = job.job_id) -> bool:
                return (await anext(client.runs(job_id))).status == "succeeded"

            await eventually(ended)
    await traced.named("work in coroutine", "process default")
    spans = spans_of(traced.folder)
    assert sorted(span.name for span in spans if not span.name.startswith("POST /api")) == [
        "claim default", "process default", "submit default", "work in coroutine",
    ]  # fmt: skip
    connection = await asyncpg.connect(database_url)
    try:
        kept = {row["job_id"]: row["trace"] for row in await connection.fetch("select job_id, trace from duly.jobs")}
    finally:
        await connection.close()
    assert kept[quiet.job_id] is None
    assert kept[loud.job_id] is not None
    assert kept[loud.job_id].startswith("00-")
