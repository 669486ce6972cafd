"""Mutants of the schema's name: what would mix two Duly in one database."""

from __future__ import annotations

from mutants.mutant import Mutant

_TEXTS = "store/test_translation.py::"
_BESIDE = "cluster/test_schemas.py::"

MUTANTS = (
    Mutant(
        "heartbeats-of-another-schema",
        "a worker's heartbeats look for its claims in the schema duly, and every lease is lost",
        "worker/leases.py",
        "schema=self._schema,",
        "",
        (f"{_TEXTS}test_no_code_forgets_the_schema",),
    ),
    Mutant(
        "grants-on-another-schema",
        "a submitter is let into the schema duly in place of the store's own",
        "store/translation.py",
        '    r"|(?<=\\bschema )duly\\b(?!\\.)"\n',
        "",
        (f"{_TEXTS}test_no_text_for_another_schema_says_duly",),
    ),
    Mutant(
        "listening-to-another-schema",
        "a node in another schema is not woken by its own submits",
        "store/notifier.py",
        "in_schema(channel, self._schema)",
        "channel",
        (f"{_BESIDE}test_a_node_hears_its_own_schema_only",),
    ),
    Mutant(
        "one-lock-for-all-schemas",
        "migrating one Duly waits for another in the same database",
        "store/migrate.py",
        '"select pg_advisory_xact_lock($1)", lock_key(connection.schema)',
        '"select pg_advisory_xact_lock($1)", lock_key("duly")',
        (f"{_BESIDE}test_locks_of_one_do_not_hold_up_the_other",),
    ),
    Mutant(
        "present-in-another-schema",
        "a dead scheduler counts as present while one of another schema holds its number",
        "store/cluster.py",
        '"cluster/be_present", lock_key(session.schema)',
        '"cluster/be_present", lock_key("duly")',
        (f"{_BESIDE}test_a_nodes_presence_is_a_lock_of_its_own_schema",),
    ),
    Mutant(
        "one-place-in-the-registry",
        "two Duly list their schedulers in one place of etcd",
        "cluster/registry.py",
        'f"/duly-{schema}"',
        '"/duly"',
        (f"{_BESIDE}test_neither_elects_for_the_other",),
    ),
)
