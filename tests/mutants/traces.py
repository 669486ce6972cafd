"""Mutants of traces."""

from __future__ import annotations

from mutants.mutant import Mutant

_SPANS = "tracing/test_spans.py"
_CONTEXT = "tracing/test_context.py"

MUTANTS = (
    Mutant(
        "trace-of-an-unsampled-request",
        "a request that nobody records leaves its context with the job",
        "tracing/incoming.py",
        "if context is None or not context.sampled else",
        "if context is None else",
        (f"{_SPANS}::TestWithoutAnSdk::test_the_context_of_a_request_is_kept_by_every_way_of_submitting",),
    ),
    Mutant(
        "trace-that-breaks-a-request",
        "a line break in baggage becomes a header of a job's request",
        "tracing/context.py",
        "if len(value) <= longest and _PRINTABLE.fullmatch(value) else",
        "if len(value) <= longest else",
        (f"{_CONTEXT}::test_what_is_too_long_or_could_break_a_request_is_left_out",),
    ),
    Mutant(
        "trace-without-a-bound",
        "baggage of any length is kept with the job",
        "tracing/context.py",
        "len(value) <= longest and ",
        "",
        (f"{_CONTEXT}::test_what_is_too_long_or_could_break_a_request_is_left_out",),
    ),
    Mutant(
        "trace-on-an-older-store",
        "a traced submit fails on a store without the column",
        "store/jobs.py",
        "trace is not None and store.has_step(TRACE_STEP)",
        "trace is not None",
        (f"{_SPANS}::TestWithoutAnSdk::test_a_store_without_the_column_serves_traced_submits",),
    ),
    Mutant(
        "trace-of-half-the-sampled",
        "the quick look rejects occurrences that the sampler takes",
        "tracing/otel.py",
        "int(float(found[1]) * 2**32)",
        "int(float(found[1]) * 2**31)",
        (f"{_SPANS}::TestSampling::test_occurrences_are_traced_as_the_sampler_says_of_their_traces_ids",),
    ),
    Mutant(
        "trace-of-untraced-handlers",
        "spans of handlers whose runs are not sampled are roots, and sampled as such",
        "worker/executor.py",
        "self.spans.unsampled()",
        "pass",
        (f"{_SPANS}::TestSampling::test_an_untraced_handlers_spans_are_not_sampled_and_have_the_runs_trace_id",),
    ),
    Mutant(
        "trace-of-untraced-threads",
        "the same in threads",
        "worker/executor.py",
        "work = self.spans.around_unsampled(work)",
        "pass",
        (f"{_SPANS}::TestSampling::test_an_untraced_handlers_spans_are_not_sampled_and_have_the_runs_trace_id",),
    ),
    Mutant(
        "trace-tells-another-host",
        "baggage goes to the host of a redirect",
        "worker/targets/http.py",
        "jobs_own, told = {}, False",
        "jobs_own = {}",
        ("worker/targets/test_http_target.py::test_what_the_job_says_to_one_host_is_not_told_to_another",),
    ),
)
