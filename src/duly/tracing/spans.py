"""Whether this process makes spans, found without importing anything that the application has not imported itself."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from duly.tracing.context import TraceContext
    from duly.tracing.otel import Tracing

_API = "opentelemetry.trace"
# Once found it stays: a tracer provider can be set only once. False: there is one, and it was switched off.
_found: Tracing | bool | None = None


def tracing() -> Tracing | None:
    """The way to make spans; None while no tracer provider is configured.

    Asked once per submit, claim or fire, and not only at the start: applications configure the SDK when they are
    imported, and some later. A process that never imported OpenTelemetry cannot have configured it.
    """
    if _found is None and _API in sys.modules:
        _look()
    return _found or None  # type: ignore[return-value]


def _look() -> None:
    global _found
    from duly.tracing.otel import find

    _found = find()


def within(context: TraceContext | None) -> AbstractContextManager[None]:
    """Another process's span is current inside, for whatever of OpenTelemetry this process has imported."""
    if context is None or _API not in sys.modules:
        return nullcontext()
    from duly.tracing.otel import attached

    return attached(context)


def current_headers(headers: MutableMapping[str, str]) -> None:
    """Adds the headers of the current span to those of a request, if the process has OpenTelemetry and such a span."""
    if _API in sys.modules:
        from duly.tracing.otel import inject_current

        inject_current(headers)
