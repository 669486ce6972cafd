"""Spans in this process, with the SDK's exporter in memory; and no spans, where there is no SDK."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from uuid import UUID, uuid4

import asyncpg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider, sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from duly import Context
from duly.errors import InvalidInput
from duly.model import JobRequest
from duly.store import fires, jobs
from duly.store.pool import Pool
from duly.tracing import TraceContext, incoming, spans, trace_id_of
from duly.tracing.otel import Tracing
from harness.worker import Workbench

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = {"traceparent": PARENT, "tracestate": "a=1", "baggage": "b=2"}


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(spans, "_found", tracing_with(sampling.ParentBased(sampling.ALWAYS_ON), exporter))
    return exporter


def tracing_with(sampler: sampling.Sampler, exporter: InMemorySpanExporter | None = None) -> Tracing:
    provider = TracerProvider(sampler=sampler)
    if exporter is not None:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider.get_tracer("duly"))


async def kept(pool: Pool) -> list[str | None]:
    return [row["trace"] for row in await pool.query("select trace from duly.jobs order by job_id")]


class TestWithoutAnSdk:
    def test_nothing_of_opentelemetry_is_imported(self) -> None:
        """In a process of its own. FastAPI imports it, where it is installed, so the API is not part of this."""
        code = (
            "import sys, duly, duly.client, duly.node, duly.cli.commands.worker, duly.worker.targets.http\n"
            "from duly.tracing import current_headers, tracing, submitting, within\n"
            "assert tracing() is None\n"
            "with submitting(1) as trace: assert trace.stored is None\n"
            "headers = {}; current_headers(headers); assert headers == {}\n"
            "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

    def test_a_provider_is_found_once_there_is_one_and_not_if_it_is_switched_off(self) -> None:
        code = (
            "import opentelemetry.trace, opentelemetry.sdk.trace as sdk\n"
            "from duly.tracing import tracing\n"
            "assert tracing() is None\n"
            "opentelemetry.trace.set_tracer_provider(sdk.TracerProvider())\n"
            "print(tracing() is not None)"
        )
        for environment, answer in (({}, "True"), ({"OTEL_SDK_DISABLED": "true"}, "False")):
            done = subprocess.run(
                [sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True, env=environment
            )
            assert done.stdout.strip() == answer

    async def test_the_context_of_a_request_is_kept_by_every_way_of_submitting(
        self, bench: Workbench, pool: Pool, database_url: str
    ) -> None:
        """One by one, many in a statement, by COPY, each with its answer, all or none, in a caller's transaction."""
        request = JobRequest("noop")
        app = bench.app
        app.task("noop")(lambda: None)
        with incoming(HEADERS):
            await bench.operations.submit(request, allow_unknown_handler=True)
            await bench.operations.submit_many([request] * 2, allow_unknown_handler=True)
            await bench.operations.submit_many([request] * 120, allow_unknown_handler=True)
            await bench.operations.submit_each([request] * 3, allow_unknown_handler=True)
            await bench.operations.submit_each([request] * 3, atomic=True, allow_unknown_handler=True)
            connection = await asyncpg.connect(database_url)
            async with connection.transaction():
                await app.submit("noop", connection=connection)
            await connection.close()
        assert await kept(pool) == ["\n".join(HEADERS.values())] * 130
        await bench.operations.submit(request, allow_unknown_handler=True)
        with incoming({"traceparent": PARENT.replace("-01", "-00")}):
            await bench.operations.submit_many([request] * 150, allow_unknown_handler=True)
        assert (await kept(pool))[130:] == [None] * 151

    async def test_a_run_has_the_submitters_trace_id_and_passes_on_what_came(self, bench: Workbench) -> None:
        told: list[tuple[str, dict[str, str]]] = []

        @bench.app.task()
        async def look(ctx: Context) -> None:
            told.append((ctx.trace_id, ctx._execution.trace_headers))

        async with bench.working():
            with incoming(HEADERS):
                first = await bench.succeeded(await bench.submit("look"))
            run = await bench.succeeded(await bench.submit("look"))
        assert told[0] == (PARENT.split("-")[1], HEADERS)
        assert first.trace_id == told[0][0]
        own_id, own = told[1]
        assert run.trace_id == own_id
        assert own_id == trace_id_of(uuid_of(run.job_id), run.scheduled_at)
        assert own.keys() == {"traceparent"}
        assert own["traceparent"].split("-")[1] == own_id
        assert own["traceparent"].endswith("-00")

    async def test_a_context_that_somebody_else_wrote_harms_nobody(self, bench: Workbench, pool: Pool) -> None:
        @bench.app.task()
        async def look(ctx: Context) -> str:
            return ctx.trace_id

        soon = datetime(2100, 1, 1, tzinfo=UTC)
        job_id = await bench.submit("look", run_at=soon)
        await pool.query("update duly.jobs set trace = E'\\n+nonsense', next_run_at = null, status = 'ended'")
        await bench.operations.jobs.trigger(job_id)
        async with bench.working():
            run = await bench.succeeded(job_id)
        assert run.result == trace_id_of(uuid_of(run.job_id), run.scheduled_at)

    async def test_a_store_without_the_column_serves_traced_submits(
        self, bench: Workbench, pool: Pool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await pool.query("alter table duly.jobs drop column trace")
        monkeypatch.setattr(Pool, "has_step", lambda _, number: number != jobs.TRACE_STEP)
        request = JobRequest("look")

        @bench.app.task()
        async def look(ctx: Context) -> str:
            return ctx.trace_id

        async with bench.working():
            with incoming(HEADERS):
                first = await bench.submit("look")
                await bench.operations.submit_many([request] * 3, allow_unknown_handler=True)
                await bench.operations.submit_many([request] * 120, allow_unknown_handler=True)
                recurring = await bench.submit("look", schedule="0 9 * * *")
            run = await bench.succeeded(first)
        assert run.result == trace_id_of(uuid_of(run.job_id), run.scheduled_at)
        (due,) = await fires.due(pool, job_ids=[uuid_of(recurring)])
        assert (due.trace, due.queue) == ("+", "default")


class TestSampling:
    @pytest.mark.parametrize(
        "sampler",
        [
            sampling.ALWAYS_ON, sampling.ALWAYS_OFF, sampling.DEFAULT_ON, sampling.DEFAULT_OFF,
            sampling.TraceIdRatioBased(0.3), sampling.ParentBasedTraceIdRatio(0.3), sampling.ParentBasedTraceIdRatio(0),
            sampling.ParentBasedTraceIdRatio(1), sampling.ParentBasedTraceIdRatio(1e-9),
        ],
        ids=lambda sampler: sampler.get_description()[:40],
    )  # fmt: skip
    def test_occurrences_are_traced_as_the_sampler_says_of_their_traces_ids(self, sampler: sampling.Sampler) -> None:
        """The quick look at a part of the id rejects no run that the sampler would take."""
        tracing = tracing_with(sampler)
        at = datetime(2030, 1, 1, tzinfo=UTC)
        for _ in range(300):
            job_id = uuid4()
            said = sampler.should_sample(None, int(trace_id_of(job_id, at), 16), "process q")
            begun = tracing.begin("+", job_id, at, "process", "q")
            assert (begun is not None) == said.decision.is_sampled()  # type: ignore[no-untyped-call]

    async def test_an_untraced_handlers_spans_are_not_sampled_and_have_the_runs_trace_id(
        self, bench: Workbench, exported: InMemorySpanExporter
    ) -> None:
        """In a coroutine and in a thread; a traced run in between changes nothing for the next."""
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exported))

        def look(ctx: Context) -> list[str | bool]:
            with provider.get_tracer("handler").start_as_current_span("inside") as span:
                found = span.get_span_context()
                return [f"{found.trace_id:032x}" == ctx.trace_id, found.trace_flags.sampled]

        @bench.app.task()
        async def coroutine(ctx: Context) -> list[str | bool]:
            return look(ctx)

        @bench.app.task()
        def thread(ctx: Context) -> list[str | bool]:
            return look(ctx)

        # Submitted without a sampled span, as by a process of which 1 % is sampled.
        unsampled = trace.NonRecordingSpan(trace.SpanContext(5, 5, is_remote=True))
        async with bench.working():
            for task in ("coroutine", "thread", "coroutine"):
                with trace.use_span(unsampled):
                    quiet = await bench.submit(task)
                assert (await bench.succeeded(quiet)).result == [True, False]
                assert exported.get_finished_spans() == ()
                with incoming(HEADERS):
                    loud = await bench.submit(task)
                assert (await bench.succeeded(loud)).result == [True, True]
                names = {span.name for span in exported.get_finished_spans()}
                assert names == {"submit default", "claim default", "process default", "inside"}
                exported.clear()

    async def test_a_bulk_submit_is_one_span_and_a_claim_one(
        self, bench: Workbench, exported: InMemorySpanExporter, pool: Pool
    ) -> None:
        bench.app.task("noop")(lambda: None)
        with incoming(HEADERS):
            await bench.operations.submit_many([JobRequest("noop")] * 150, allow_unknown_handler=True)
        (submit,) = exported.get_finished_spans()
        assert submit.attributes is not None
        assert submit.attributes["messaging.batch.message_count"] == 150
        assert {TraceContext.from_stored(one).span_id for one in await kept(pool)} == {  # type: ignore[union-attr]
            f"{submit.get_span_context().span_id:016x}"  # type: ignore[union-attr]
        }
        async with bench.working():
            for _ in range(150):
                await bench.ended.get()
        found = [span.name for span in exported.get_finished_spans()]
        assert found.count("process default") == 150
        assert 1 <= found.count("claim default") < 50

    async def test_a_refused_submit_says_the_class_of_its_error_alone(
        self, bench: Workbench, exported: InMemorySpanExporter
    ) -> None:
        with pytest.raises(InvalidInput, match="priority"):
            await bench.operations.submit(JobRequest("noop", priority=70), allow_unknown_handler=True)
        (submit,) = exported.get_finished_spans()
        assert submit.attributes is not None
        assert (submit.attributes["error.type"], submit.status.description) == ("InvalidInput", None)
        assert submit.events == ()


def uuid_of(text: object) -> UUID:
    return UUID(str(text))
