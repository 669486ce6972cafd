"""Traces: the context that a submit leaves with its jobs, and OpenTelemetry's spans, where an application has its SDK.

`context.py` needs nothing but Python: it reads, keeps and passes on the headers of W3C Trace Context. `spans.py` makes
spans, and only in a process that has a tracer provider; in any other, asking for it costs one look into `sys.modules`
per submit, claim or fire.
"""

from duly.tracing.context import FiredRun, TraceContext, trace_id_of
from duly.tracing.incoming import Submit, incoming, submitting
from duly.tracing.spans import current_headers, tracing, within

__all__ = [
    "FiredRun",
    "Submit",
    "TraceContext",
    "current_headers",
    "incoming",
    "submitting",
    "trace_id_of",
    "tracing",
    "within",
]
