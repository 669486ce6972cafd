"""Mutants of the API's defences: heads, bodies and pauses of one client must not cost others anything."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "head-with-control-characters",
        "spaces before a NUL in a header cost the square of their number, without a key",
        "api/connections.py",
        "if _CONTROL.search(head):",
        "if False:",
        ("api/test_growth.py::test_no_header_costs_more_than_in_proportion",),
    ),
    Mutant(
        "answers-wait-for-acknowledgements",
        "each answer on a kept connection takes 40 ms",
        "api/binding.py",
        "socket.SOCK_STREAM, socket.IPPROTO_TCP)",
        "socket.SOCK_STREAM)",
        ("api/test_connections.py::test_an_answer_on_a_kept_connection_waits_for_no_acknowledgement",),
    ),
    Mutant(
        "length-beside-chunks",
        "the bytes after a request with two lengths are answered as a second request",
        "api/connections.py",
        'if b"transfer-encoding" in names and b"content-length" in names:',
        "if False:",
        ("api/test_connections.py::test_a_head_is_bounded_and_says_in_one_way_how_long_its_body_is",),
    ),
    Mutant(
        "unread-answers-stay",
        "clients that read nothing hold their answers for ever",
        "api/connections.py",
        "if self._is_stuck(now):",
        "if False and self._is_stuck(now):",
        ("api/test_connections.py::test_an_answer_that_nobody_reads_is_let_go",),
    ),
    Mutant(
        "body-by-the-drop",
        "a byte now and then keeps a connection for ever",
        "api/connections.py",
        "return now - self._heard_at >= limits.pause_seconds or now - self._since >= allowed",
        "return now - self._heard_at >= limits.pause_seconds",
        ("api/test_connections.py::test_a_body_that_does_not_come_ends_the_connection",),
    ),
    Mutant(
        "elements-of-any-size",
        "one job of a batch may be as large as the batch",
        "api/body.py",
        "        if size > self._each:\n",
        "        if size < 0:\n",
        ("api/test_body.py::test_an_element_that_is_too_large_is_refused_unread",),
    ),
    Mutant(
        "values-without-bound",
        "a few megabytes of brackets become hundreds in memory",
        "api/body.py",
        "        if self._left < 0:\n",
        "        if False:\n",
        ("api/test_body.py::test_dense_values_are_refused_before_they_fill_the_memory",),
    ),
    Mutant(
        "all-errors-kept",
        "a batch of wrong fields holds half a million objects, and each garbage collection delays all requests",
        "api/routes/batch.py",
        "most=_MAX_NAMED if len(refused) < _MAX_WITH_ERRORS else 1",
        "",
        ("api/test_batch.py::test_of_ten_thousand_wrong_jobs_few_fields_are_kept",),
    ),
    Mutant(
        "long-schedules-remembered",
        "previews of long rules fill the memory",
        "timing/cache.py",
        "LONG_SIZE = 128",
        "LONG_SIZE = SIZE",
        ("timing/test_budget.py::test_what_is_remembered_of_schedules_is_bounded_in_memory",),
    ),
)
