"""Mutants of figures and probes."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "figures-count-what-was-refused",
        "an outcome that the store refused counts as recorded",
        "worker/completer.py",
        "        if accepted == len(ends):\n",
        "        if accepted <= len(ends):\n",
        ("test_figures.py::test_what_is_no_longer_this_workers_is_lost_and_not_counted_as_recorded",),
    ),
    Mutant(
        "figures-forget-a-lost-answer",
        "an outcome whose statement's answer was lost is never counted",
        "worker/completer.py",
        "self._note_recorded([end for end in ends if (end.run.job_id, end.run.scheduled_at) in mine])",
        "pass",
        ("test_figures.py::test_what_was_recorded_by_a_statement_whose_answer_was_lost_is_counted_once",),
    ),
    Mutant(
        "figures-have-the-lag-of-retries",
        "the pause before a retry counts as a late start",
        "worker/completer.py",
        "[end for end in begun if end.run.attempt == 1]",
        "[end for end in begun]",
        ("test_figures.py::test_runs_retries_and_expiries_of_a_worker",),
    ),
    Mutant(
        "figures-die-with-their-process",
        "counters go back when a process of a worker ends",
        "cli/reports.py",
        "                self._ended = added([self._ended, heard.figures], gauges=False)\n",
        "",
        ("cli/test_health.py::test_one_port_for_all_processes_of_a_worker_whose_counters_never_go_back",),
    ),
    Mutant(
        "figures-miss-the-last-words",
        "what a process counted in its last second is lost although it ended in order",
        "cli/supervised.py",
        "        self._listen()\n        asyncio.get_running_loop().remove_reader",
        "        asyncio.get_running_loop().remove_reader",
        ("cli/test_reports.py::test_the_last_words_of_a_process_are_heard",),
    ),
    Mutant(
        "liveness-believes-a-hung-loop",
        "a process whose event loop hangs counts as alive",
        "vitals.py",
        "        not_alive = self._hung() or self._alive()\n",
        "        not_alive = self._alive()\n",
        ("cli/test_health.py::test_a_loop_that_hangs_is_not_alive_and_a_stopped_process_does_not_answer",),
    ),
    Mutant(
        "liveness-asks-postgres",
        "an outage of PostgreSQL makes healthy processes be restarted",
        "vitals.py",
        "        not_alive = self._hung() or self._alive()\n",
        "        not_alive = self._hung() or self._alive() or self._ready()\n",
        ("cli/test_health.py::test_a_postgres_that_does_not_answer_makes_nothing_unlive_but_unready",),
    ),
    Mutant(
        "liveness-believes-a-silent-process",
        "a process of a worker that was stopped counts as alive",
        "cli/reports.py",
        "        if heard.at is not None and (silent := now - heard.at) > self._hung_seconds:\n",
        "        if heard.at is None and (silent := now) > self._hung_seconds:\n",
        ("cli/test_health.py::test_one_port_for_all_processes_of_a_worker_whose_counters_never_go_back",),
    ),
)
