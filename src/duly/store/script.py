"""The steps as SQL text, for psql, for Alembic, and for people who read a change before it is made.

Each step is one `do` statement, so it is a transaction by itself and any tool can carry it. It takes the lock of
`store/migrate.py`, gives up on a table that is locked after a second, passes over what the store has, applies the step,
records it, and leaves the session's settings as they were. What has to run outside a transaction is a row of statements
of which each may be repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from duly.schema_name import DEFAULT_SCHEMA
from duly.store.migrate import LOCK_WAIT, index_of, statements_of
from duly.store.steps import BASELINE, FENCE, MIN_VERSION, ROUTINES, Release, Routines, Step, row_of
from duly.store.translation import in_schema, lock_key
from duly.version import parsed

# The texts are those for the schema duly, and are translated as a whole.
LOCK = lock_key(DEFAULT_SCHEMA)


@dataclass(frozen=True, slots=True)
class Piece:
    """The statements that apply one step, or the routines."""

    label: str
    statements: tuple[str, ...]
    concurrently: bool = False
    """They run outside a transaction."""


def script(
    chosen: Sequence[Step | Routines],
    having: Collection[int],
    release: Release,
    shards: int,
    *,
    create_schema: bool = True,
    schema: str = DEFAULT_SCHEMA,
) -> str:
    """SQL for a store that has the steps `having`; none of them: for a new store. It refuses any other store."""
    title = f"-- Duly {release.version}: " + (
        f"for a store that has the steps {_listed(having)}" if having else "for a new store"
    )
    if not chosen:
        return f"{title}. It lacks nothing.\n"
    parts = [
        f"{title}. It applies:",
        *(f"--   {one.label}{_remark(one)}" for one in chosen),
        "-- Each statement is a transaction by itself. Run the file as a whole, so that it ends at the first error:",
        "--   psql -X -v ON_ERROR_STOP=1 -f FILE",
        "-- After an error (such as a table that is locked) it may be run again: it passes over what the store has."
        if having
        else "-- It makes a store where there is none.",
        "",
        "set client_encoding = 'UTF8';",
        "set statement_timeout = 0;",
        "set search_path = pg_catalog, pg_temp;",
        "",
        _refusal(having),
    ]
    for piece in pieces(chosen, release, shards, create_schema=create_schema):
        parts += ["", f"-- {piece.label}", *(f"{one};" for one in piece.statements)]
    return in_schema("\n".join(parts) + "\n", schema)


def pieces(
    chosen: Sequence[Step | Routines],
    release: Release,
    shards: int,
    *,
    create_schema: bool = True,
    schema: str = DEFAULT_SCHEMA,
) -> list[Piece]:
    """The statements for each. They pass over what the store has already."""
    found = [
        _routines(one, release)
        if isinstance(one, Routines)
        else _concurrent(one, release)
        if one.concurrently
        else _step(one, release, shards, create_schema=create_schema)
        for one in chosen
    ]
    return [replace(one, statements=tuple(in_schema(text, schema) for text in one.statements)) for one in found]


def _remark(one: Step | Routines) -> str:
    if isinstance(one, Routines):
        return ""
    remarks = [
        "destructive" if one.phase == "after" else "",
        "outside a transaction" if one.concurrently else "",
        f"from then on Duly {one.min_version} or newer is needed" if one.min_version else "",
    ]
    said = ", ".join(remark for remark in remarks if remark)
    return f" ({said})" if said else ""


def _listed(steps: Collection[int]) -> str:
    return ", ".join(str(number) for number in sorted(steps))


def _refusal(having: Collection[int]) -> str:
    """Stops a script that was made for another store."""
    if not having:
        return """\
do $migration$
begin
    if to_regclass('duly.migrations') is not null then
        raise exception 'this script makes a new store, but this database has a schema duly with a store in it'
            using hint = 'make a script for this store: duly migrate --sql';
    end if;
end
$migration$;"""
    rows = ", ".join(f"({number}, {row_of(number)})" for number in sorted(having))
    return f"""\
do $migration$
declare
    lacking text;
begin
    if to_regclass('duly.migrations') is null then
        raise exception 'this script is for a store that has the steps {_listed(having)}; this database has no store'
            using hint = 'make a script for a new store: duly migrate --sql --from 0';
    end if;
    select string_agg(needed.step::text, ', ' order by needed.step) into lacking
    from (values {rows}) as needed (step, version)
    where not exists (select from duly.migrations m where m.version = needed.version);
    if lacking is not null then
        raise exception 'this script is for a store that has the steps {_listed(having)}; this store lacks %', lacking
            using hint = 'make a script for this store: duly migrate --sql';
    end if;
end
$migration$;"""


def _step(step: Step, release: Release, shards: int, *, create_schema: bool) -> Piece:
    work = [_execute("step", step.sql), _record(step)]
    first = ""
    if step.number == BASELINE:
        first = _empty_store(create_schema=create_schema)
        work += [_execute("routines", release.routines.sql), _record_routines(release.routines), _only_store(shards)]
    condition = f"exists (select from duly.migrations where version = {row_of(step.number)})"
    text = _statement(condition, step.label, "\n".join(work), _check_versions(step, release), first)
    return Piece(step.label, (text,))


def _routines(routines: Routines, release: Release) -> Piece:
    theirs, ours = _numbers("m.name"), _array(routines.version)
    condition = (
        f"exists (select from duly.migrations m where m.version = {ROUTINES} "
        f"and ({theirs} > {ours} or {theirs} = {ours} and m.checksum = '{routines.checksum}'))"
    )
    work = "\n".join([_execute("routines", routines.sql), _record_routines(routines)])
    return Piece(routines.label, (_statement(condition, routines.label, work, _check_versions(None, release)),))


def _concurrent(step: Step, release: Release) -> Piece:
    check = _statement("false", step.label, "perform true;", _check_versions(step, release))
    statements = [check, f"do $migration$ begin perform pg_catalog.pg_advisory_lock({LOCK}); end $migration$"]
    for one in statements_of(step.sql):
        if (name := index_of(one)) is not None:
            statements.append(f"""\
do $migration$
begin
    if exists (
        select from pg_catalog.pg_index i
        where not i.indisvalid and i.indexrelid = pg_catalog.to_regclass('duly.{name}')::pg_catalog.oid
    ) then
        -- A dead attempt has left it unfinished.
        drop index duly.{name};
    end if;
end
$migration$""")
            one = one.replace("concurrently ", "concurrently if not exists ", 1) if "if not exists" not in one else one
        statements.append(one)
    condition = f"exists (select from duly.migrations where version = {row_of(step.number)})"
    statements.append(_statement(condition, step.label, _record(step), _check_versions(step, release)))
    statements.append(f"do $migration$ begin perform pg_catalog.pg_advisory_unlock({LOCK}); end $migration$")
    return Piece(step.label, tuple(statements), concurrently=True)


def _statement(condition: str, label: str, work: str, checks: str, first: str = "") -> str:
    """One `do` statement: unless the condition holds, it works."""
    return f"""\
do $migration$
declare
    former_path text := pg_catalog.current_setting('search_path');
    former_wait text := pg_catalog.current_setting('lock_timeout');
    older text;
begin
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    perform set_config('lock_timeout', '{LOCK_WAIT}', true);
    perform pg_advisory_xact_lock({LOCK});
{first}{checks}    if {condition} then
        raise notice 'the store has {label} already';
    else
{_indented(work, 8)}
    end if;
    perform set_config('lock_timeout', former_wait, true);
    perform set_config('search_path', former_path, true);
end
$migration$"""


def _empty_store(*, create_schema: bool) -> str:
    make = (
        "execute 'create schema duly';"
        if create_schema
        else "raise exception 'there is no schema duly in this database; let the owner of the database run: "
        "create schema duly';"
    )
    # `if not exists` would ask for the right to create before it looks.
    return f"""\
    if not exists (select from pg_namespace where nspname = 'duly') then
        {make}
    end if;
    if to_regclass('duly.migrations') is null then
        create table duly.migrations (version integer primary key, name text not null, checksum text not null,
            applied_at timestamptz not null default clock_timestamp());
    end if;
"""


def _check_versions(step: Step | None, release: Release) -> str:
    """Refuses a store that has gone too far for this Duly, and a destructive step while older nodes live."""
    text = f"""\
    if exists (
        select from duly.migrations m
        where m.version = {MIN_VERSION} and {_numbers("m.name")} > {_array(release.version)}
    ) then
        raise exception 'the store is newer than the Duly that made this script, {release.version}';
    end if;
"""
    if step is None or step.phase != "after":
        return text
    return (
        text
        + f"""\
    select string_agg(format('%s %s (%s)', n.kind, n.name, n.version), ', ' order by n.kind, n.name) into older
    from duly.nodes n
    where n.stopped_at is null and n.lease_until > duly.now()
        and {_numbers("n.version")} < {_array(step.min_version or "")};
    if older is not null and not exists (select from duly.migrations where version = {row_of(step.number)}) then
        raise exception '{step.label} waits until these older nodes have ended: %', older;
    end if;
"""
    )


def _numbers(column: str) -> str:
    """The numbers of a version, as `duly.version.parsed` reads them."""
    return f"coalesce(string_to_array(substring({column} from '^\\d+(?:\\.\\d+)*'), '.')::integer[], '{{}}')"


def _array(version: str) -> str:
    return "array[" + ", ".join(map(str, parsed(version))) + "]::integer[]"


def _execute(tag: str, sql: str) -> str:
    tag = f"${tag}$"
    assert tag not in sql
    assert "$migration$" not in sql
    return f"execute {tag}\n{sql}\n{tag};"


def _record(step: Step) -> str:
    lines = [_insert(row_of(step.number), step.name, step.checksum, "nothing")]
    if (least := step.min_version) is not None:
        rises = (
            "update set name = excluded.name, applied_at = excluded.applied_at\n"
            f"where {_numbers('m.name')} < {_array(least)}"
        )
        lines.append(_insert(MIN_VERSION, least, "", rises))
        if parsed(least) > parsed("0.1.0"):
            lines.append(_insert(FENCE, "not for 0.1.0", "", "nothing"))
    return "\n".join(lines)


def _record_routines(routines: Routines) -> str:
    again = "update set name = excluded.name, checksum = excluded.checksum, applied_at = excluded.applied_at"
    return _insert(ROUTINES, routines.version, routines.checksum, again)


def _insert(number: int, name: str, checksum: str, otherwise: str) -> str:
    return (
        f"insert into duly.migrations as m (version, name, checksum) values ({number}, '{name}', '{checksum}')\n"
        f"on conflict (version) do {otherwise};"
    )


def _only_store(shards: int) -> str:
    return f"""\
if not exists (select from duly.store) then
    insert into duly.store (shard_count) values ({int(shards)});
    insert into duly.shards (shard) select generate_series(0, {int(shards)} - 1);
end if;"""


def _indented(text: str, by: int) -> str:
    """Indents Duly's own lines. A step's text stays as it is: it is what the store keeps of a function."""
    lines, inside = [], ""
    for line in text.split("\n"):
        own = not inside
        if line.startswith("execute $"):
            inside = line.removeprefix("execute ") + ";"
        elif line == inside:
            inside = ""
        lines.append(" " * by + line if own and line else line)
    return "\n".join(lines)
