"""Mutants of processes that are worn out and replaced."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "worn-process-ends-first",
        "no run starts while a process is replaced",
        "cli/supervised.py",
        "            awaited = successor.ready, successor.ended, old.ended\n",
        "            successor.ready.set_result(Ready(None, False))\n"
        "            awaited = successor.ready, successor.ended, old.ended\n",
        ("cli/test_recycling.py::test_runs_go_on_without_a_pause_while_a_process_is_replaced",),
    ),
    Mutant(
        "worn-process-is-told-twice",
        "the stop of a supervisor cuts short the handlers of a process that is being replaced",
        "cli/supervised.py",
        "if self.ended.done() or (number is signal.SIGTERM and self._asked_to_end):",
        "if self.ended.done():",
        ("cli/test_recycling.py::test_a_stop_of_the_supervisor_ends_both_processes_within_the_grace",),
    ),
    Mutant(
        "worn-process-is-forgotten",
        "the runs of a process that dies while it is replaced wait for the end of its lease",
        "cli/supervised.py",
        "        self._since = successor.began\n        self._follow(old)\n",
        "        self._since = successor.began\n",
        (
            "cli/test_recycling.py::test_a_worn_process_that_is_killed_loses_nothing",
            "cli/test_recycling.py::test_a_process_that_is_killed_while_it_ends_loses_nothing",
        ),
    ),
    Mutant(
        "supervisor-dies-with-messages-unread",
        "a worker lives on when its supervisor dies before it has read what the worker said",
        "cli/ending.py",
        "        with suppress(ConnectionResetError):\n            while said := os.read(lifeline, 65536):\n"
        "                heard(said)\n",
        "        while said := os.read(lifeline, 65536):\n            heard(said)\n",
        ("cli/test_worker.py::test_a_worker_whose_supervisor_died_with_messages_unread_ends",),
    ),
    Mutant(
        "worn-process-lives-on",
        "a process that was replaced and hangs in its end stays for ever",
        "cli/supervised.py",
        "            process.send(signal.SIGKILL)\n",
        "            pass\n",
        ("cli/test_recycling.py::test_a_process_that_hangs_in_its_end_is_killed_and_its_runs_given_back",),
    ),
    Mutant(
        "worn-process-without-successor-gives-up",
        "a worn process is not replaced if the first successor dies at its start",
        "cli/supervised.py",
        "                self._follow(successor)\n                why = ",
        "                return\n                why = ",
        ("cli/test_recycling.py::test_a_successor_that_dies_at_its_start_is_tried_again_while_the_old_process_works",),
    ),
    Mutant(
        "bloated-process-claims",
        "a process whose successor cannot start grows without bound",
        "worker/wear.py",
        "return 0 if memory is not None and memory > self._bloated_at else min(room, HEAVY_ROOM)",
        "return min(room, HEAVY_ROOM)",
        ("worker/test_wear.py::test_a_process_above_its_limit_claims_little_and_at_twice_the_limit_nothing",),
    ),
    Mutant(
        "cramped-process-spins",
        "with a limit below what an empty process takes, processes only start",
        "worker/wear.py",
        "not (self.cramped and young)",
        "True",
        ("worker/test_wear.py::test_a_limit_that_leaves_too_little_neither_spins_nor_stops_the_claims",),
    ),
    Mutant(
        "hung-threads-are-kept",
        "a worker process of which half the threads hang goes on with the rest for ever",
        "worker/wear.py",
        "if 2 * hanging >= limit:",
        "if hanging >= limit:",
        ("worker/test_wear.py::test_half_of_the_threads_must_hang",),
    ),
    Mutant(
        "worn-child-is-kept",
        "an isolated child that leaks is used for ever",
        "worker/processes/children.py",
        "if self._worn_at.reached(child.calls, child.memory):",
        "if False:",
        (
            "worker/processes/test_children.py::test_a_child_is_replaced_after_its_number_of_runs",
            "worker/processes/test_children.py::test_a_child_that_leaks_is_replaced_between_two_runs",
        ),
    ),
)
