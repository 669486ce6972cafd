"""The context of a trace as it travels: three headers of W3C Trace Context and Baggage. No I/O, no OpenTelemetry.

A job keeps it in one nullable column, and only if its submit was sampled. Claims return that column in the form which
`TraceContext.of_run` reads: as it is for a one-off, which belongs to its submitter's trace, and after a plus sign for
every other job, each of whose occurrences begins a trace of its own that links to the submit.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID
from zlib import crc32

from duly.model.ids import make_run_id

# Longest headers that are kept; a longer one is left out whole, because the rest of it would mean something else.
MAX_TRACESTATE = 512
MAX_BAGGAGE = 1024
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
# They become headers of other requests, so nothing else may pass.
_PRINTABLE = re.compile(r"[\x20-\x7e]*")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
#: What a claim returns before the context of a job that is not a one-off.
LINKED = "+"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span of another process. `flags` are two hex digits; bit 0 says that the span is sampled."""

    trace_id: str
    span_id: str
    flags: str
    tracestate: str = ""
    baggage: str = ""

    @property
    def sampled(self) -> bool:
        return bool(int(self.flags, 16) & 1)

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"

    @property
    def headers(self) -> dict[str, str]:
        found = {"traceparent": self.traceparent, "tracestate": self.tracestate, "baggage": self.baggage}
        return {name: value for name, value in found.items() if value}

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> TraceContext | None:
        """The context of these headers (in lower case); None if they name no span that can be read."""
        return cls._read(headers.get("traceparent", ""), headers.get("tracestate", ""), headers.get("baggage", ""))

    def to_stored(self) -> str:
        return "\n".join((self.traceparent, self.tracestate, self.baggage)).rstrip("\n")

    @classmethod
    def from_stored(cls, text: str | None) -> TraceContext | None:
        """What a job keeps. Other programs may write that column too: what cannot be read is no context."""
        if not text:
            return None
        traceparent, tracestate, baggage = (*text.split("\n", 2), "", "")[:3]
        return cls._read(traceparent, tracestate, baggage)

    @classmethod
    def of_run(cls, text: str | None) -> tuple[TraceContext | None, TraceContext | None]:
        """The context that a run continues, and the one that it links to: at most one of them."""
        if not text:
            return None, None
        if text.startswith(LINKED):
            return None, cls.from_stored(text[1:])
        return cls.from_stored(text), None

    @classmethod
    def _read(cls, traceparent: str, tracestate: str, baggage: str) -> TraceContext | None:
        found = _PARENT.fullmatch(traceparent.strip())
        if found is None:
            return None
        version, trace_id, span_id, flags, more = found.groups()
        if version == "ff" or (version == "00" and more) or trace_id == _NO_TRACE or span_id == _NO_SPAN:
            return None
        return cls(trace_id, span_id, flags, _kept(tracestate, MAX_TRACESTATE), _kept(baggage, MAX_BAGGAGE))


class FiredRun(NamedTuple):
    """One occurrence that a scheduler fired. `trace`: as a claim returns it."""

    job_id: UUID
    scheduled_at: datetime
    trace: str | None
    queue: str | None


def _kept(value: str, longest: int) -> str:
    return value if len(value) <= longest and _PRINTABLE.fullmatch(value) else ""


_2000 = datetime(2000, 1, 1, tzinfo=UTC)


def lot_of(job_id: UUID, scheduled_at: datetime) -> int:
    """The first 32 of the 64 bits by which samplers judge the id of an occurrence's trace.

    They are cheaper than the whole id (0.15 µs of 1.2): workers reject almost every run by them alone.
    """
    since = scheduled_at - _2000
    return crc32(job_id.bytes, (since.days * 86_400 + since.seconds) * 0x9E3779B1 & 0xFFFFFFFF)


def trace_id_of(job_id: UUID, scheduled_at: datetime) -> str:
    """The id of an occurrence's own trace: 32 hex digits, the same for all of its attempts on all workers."""
    run_id = make_run_id(job_id, scheduled_at)
    digest = hashlib.blake2b(run_id.encode(), digest_size=12).hexdigest()
    return f"{digest[:16]}{lot_of(job_id, scheduled_at):08x}{digest[16:]}"
