"""The context of a trace as headers and as a job keeps it."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from duly.tracing import TraceContext, trace_id_of
from duly.tracing.context import MAX_BAGGAGE, MAX_TRACESTATE, lot_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_headers_survive_the_way_through_the_store() -> None:
    headers = {"traceparent": PARENT, "tracestate": "a=1,b=2", "baggage": "tenant=acme;p=1"}
    context = TraceContext.from_headers(headers)
    assert context is not None
    assert (context.trace_id, context.span_id, context.sampled) == (TRACE, SPAN, True)
    again = TraceContext.from_stored(context.to_stored())
    assert again == context
    assert again.headers == headers


@pytest.mark.parametrize("present", [{}, {"tracestate": "a=1"}, {"baggage": "b=2"}])
def test_only_what_was_sent_is_passed_on(present: dict[str, str]) -> None:
    context = TraceContext.from_headers({"traceparent": PARENT, **present})
    assert context is not None
    again = TraceContext.from_stored(context.to_stored())
    assert again is not None
    assert again.headers == {"traceparent": PARENT, **present}


@pytest.mark.parametrize(
    "text",
    [
        "", "garbage", PARENT.upper(), PARENT[:-1], PARENT + "-more", PARENT.replace("00-", "ff-", 1),
        f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{SPAN}", "+", "\n\n",
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_no_context(text: str) -> None:
    assert TraceContext.from_headers({"traceparent": text}) is None
    assert TraceContext.from_stored(text) is None
    assert TraceContext.of_run(text) == (None, None)


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    context = TraceContext.from_headers({"traceparent": f"01-{TRACE}-{SPAN}-01-something"})
    assert context is not None
    assert context.traceparent == PARENT


def test_what_is_too_long_or_could_break_a_request_is_left_out() -> None:
    """A line break would begin another header."""
    longest = TraceContext.from_headers(
        {"traceparent": PARENT, "tracestate": "s" * MAX_TRACESTATE, "baggage": "b" * MAX_BAGGAGE}
    )
    assert longest is not None
    assert len(longest.headers) == 3
    for tracestate, baggage in [
        ("s" * (MAX_TRACESTATE + 1), "b" * (MAX_BAGGAGE + 1)),
        ("a\r\nx: y", "ü\n"),
        ("\0", "\n"),
    ]:
        context = TraceContext.from_headers({"traceparent": PARENT, "tracestate": tracestate, "baggage": baggage})
        assert context is not None
        assert context.headers == {"traceparent": PARENT}
    written = TraceContext.from_stored(f"{PARENT}\na=1\nb=2\nx: y")
    assert written is not None
    assert written.headers == {"traceparent": PARENT, "tracestate": "a=1"}


def test_a_one_off_continues_and_an_occurrence_links() -> None:
    context = TraceContext.from_stored(PARENT)
    assert TraceContext.of_run(PARENT) == (context, None)
    assert TraceContext.of_run("+" + PARENT) == (None, context)
    assert TraceContext.of_run("+") == TraceContext.of_run(None) == (None, None)


def test_the_traces_of_occurrences_differ_and_are_drawn_evenly() -> None:
    """The share that a sampler takes is the one that it was given, for schedules of any step."""
    dice = random.Random(7)
    begin = datetime(2027, 1, 1, 9, tzinfo=UTC)
    for step in (1, 60, 3600, 86_400, 604_800):
        jobs = [UUID(int=dice.getrandbits(128)) for _ in range(20)]
        runs = [(job, begin + timedelta(seconds=step * number)) for job in jobs for number in range(500)]
        assert len({lot_of(*run) for run in runs}) > 9_900
        for share in (0.01, 0.1, 0.5):
            taken = sum(lot_of(*run) < share * 2**32 for run in runs) / len(runs)
            assert taken == pytest.approx(share, rel=0.35)
    job, at = UUID(int=5), datetime(2027, 1, 1, tzinfo=UTC)
    assert len({trace_id_of(job, at + timedelta(microseconds=number)) for number in range(100)}) == 100
    assert int(trace_id_of(job, at), 16) >> 32 & 0xFFFFFFFF == lot_of(job, at)
