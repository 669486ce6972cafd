"""Tasks whose handlers make spans of their own, wherever they run."""

from __future__ import annotations

from opentelemetry import baggage, trace

from duly import Context, Duly, Permanent

app = Duly()
_tracer = trace.get_tracer("handlers")


def _work(ctx: Context, where: str) -> None:
    with _tracer.start_as_current_span(f"work in {where}") as span:
        span.set_attribute("ctx.trace_id", ctx.trace_id)
        span.set_attribute("tenant", str(baggage.get_baggage("tenant")))


@app.task()
async def coroutine(ctx: Context) -> None:
    _work(ctx, "coroutine")


@app.task()
def thread(ctx: Context) -> None:
    _work(ctx, "thread")


@app.task(isolation="process")
def child(ctx: Context) -> None:
    _work(ctx, "child")


@app.task(max_retries=2, retry_backoff="immediate", retry_delay_seconds=0.1)
async def stumbling(ctx: Context, token: str) -> None:
    if ctx.attempt == 1:
        raise ValueError(f"the token {token} is not known")
    if ctx.attempt == 2:
        raise Permanent("no more")
