"""Errors of a healthy server, days that pass, links that fell silent."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "any-error-is-the-data",
        "a passing error of the server pauses jobs and replaces results",
        "store/pool.py",
        '_DATA = ("22", "23")',
        '_DATA = ("22", "23", "40", "53", "55", "57")',
        ("unit/test_store_errors.py",),
    ),
    Mutant(
        "no-error-is-the-data",
        "a job whose data are refused is tried for ever, and all that are due with it",
        "store/pool.py",
        '_DATA = ("22", "23")',
        '_DATA = ("00",)',
        ("unit/test_store_errors.py",),
    ),
    Mutant(
        "standby-is-kept",
        "a connection to a server that has become read-only is used for ever",
        "store/pool.py",
        '_SPENT = ("25006", ',
        '_SPENT = ("00000", ',
        ("unit/test_store_errors.py",),
    ),
    Mutant(
        "settings-of-the-role",
        "somebody's search_path decides which functions are called",
        "store/pool.py",
        '    "search_path": "pg_catalog",\n',
        "",
        ("unit/test_store_errors.py",),
    ),
    Mutant(
        "locks-of-the-role",
        "a role's lock_timeout ends Duly's statements",
        "store/pool.py",
        '    "lock_timeout": "0",\n',
        "",
        ("unit/test_store_errors.py",),
    ),
    Mutant(
        "races-within-are-errors",
        "several statements that lost a race together are not done again",
        "store/pool.py",
        "async with self._transaction() as transaction:\n                return await work(transaction)",
        "async with self.transaction() as transaction:\n                return await work(transaction)",
        ("store/test_deadlocks.py::test_several_statements_are_done_again_from_the_first",),
    ),
    Mutant(
        "full-queue-of-notifications",
        "a queue of notifications that was full once stays so",
        "store/pool.py",
        'await self._fetch(statement("store/notifications"), ())',
        "pass",
        ("store/test_notifications.py",),
    ),
    Mutant(
        "deaf-and-content",
        "a session that does not listen any more is kept",
        "store/notifier.py",
        "return set(self._listeners) <= set(channels)",
        "return True",
        ("services/test_silent_links.py::test_a_session_that_does_not_listen_any_more_is_replaced",),
    ),
    Mutant(
        "silence-is-golden",
        "nobody asks a listening connection whether it is still there",
        "store/notifier.py",
        "not await self._listens(self._connection)",
        "False",
        ("services/test_silent_links.py::test_a_listener_that_a_balancer_has_forgotten_is_replaced_within_seconds",),
    ),
    Mutant(
        "untold-and-waiting",
        "without announcements what is due soon waits for the next re-read",
        "scheduler/loader.py",
        "elif not told:",
        "elif False:",
        ("services/test_silent_links.py",),
    ),
    Mutant(
        "stranded-days",
        "rows of days without a partition stay in the default one for ever",
        "store/sql/maintenance/missing_partitions.sql",
        "where s.day < clock.today - 1",
        "where s.day < clock.today - 1 and false",
        ("store/test_partitions.py",),
    ),
    Mutant(
        "terms-in-force-forgotten",
        "the term that a run was fired under has no name",
        "store/sql/cluster/forget_terms.sql",
        "t.epoch < least(kept.first, kept.last)",
        "t.epoch <= least(kept.first, kept.last)",
        ("store/test_terms.py",),
    ),
)
