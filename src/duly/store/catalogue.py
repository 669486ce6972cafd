"""Drift: where a store differs from what its recorded steps and routines have made.

`catalogue.json` says what each step and the routines of each version make, as PostgreSQL's catalogue shows it
(`stores/catalogue.sql`). It is generated: `make catalogue` writes it, and a test says when it is out of date. So a
check only reads, needs no right to create anything, and compares a store that lacks the newest steps with what it
should have.

Compared are facts that PostgreSQL 14 to 18 print alike. Views, and functions that PostgreSQL keeps as parsed, are
compared without the names of tables before columns, which newer versions leave out.

Not compared: storage parameters, privileges, owners and statistics, which operators set; partitions of a day; and
tables, views and functions whose names are not Duly's. A store with steps that this Duly does not know has a catalogue
that only the Duly of those steps can judge.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from duly.schema_name import DEFAULT_SCHEMA
from duly.store.pool import Pool
from duly.store.steps import BASELINE, FIRST_BASELINE, ROUTINES, Recorded, Release, Step, row_of, this_release
from duly.store.translation import from_schema, in_schema
from duly.version import parsed

FIRST_VERSION = "0.1.0"
_SPELT_OUT = "duly migrate --sql --from 0"
_INVALID = " (invalid)"


class Thing(NamedTuple):
    """Something that the catalogue lists. `of`: the table of a column, an index, a constraint, a trigger or a rule."""

    kind: str
    of: str | None
    name: str

    @classmethod
    def read(cls, key: str) -> Thing:
        kind, _, path = key.partition(" ")
        of, _, name = ("", "", path) if kind in ("table", "view", "function") else path.partition(".")
        return cls(kind, of or None, name)

    @property
    def key(self) -> str:
        return f"{self.kind} {self.name if self.of is None else f'{self.of}.{self.name}'}"

    def __str__(self) -> str:
        if self.of is None or self.kind == "column":
            return self.key
        return f"{self.kind} {self.name} of table {self.of}"


#: What is known of each thing, by `Thing.key`.
Facts = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between a store and what Duly has made of it."""

    what: str
    is_so: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what} {self.is_so}; {self.advice}"


@dataclass(frozen=True, slots=True)
class Manifest:
    steps: Mapping[int, Mapping[str, str | None]]
    """What each step makes and changes; None: what it drops."""
    routines: Mapping[str, Facts]
    """By the version of Duly that brought them."""

    def after(self, steps: Iterable[int]) -> dict[str, str]:
        """What a store with these steps has, apart from the routines."""
        facts: dict[str, str] = {}
        for number in sorted(steps):
            for key, about in self.steps.get(number, {}).items():
                if about is None:
                    facts.pop(key, None)
                else:
                    facts[key] = about
        return facts


@cache
def manifest() -> Manifest:
    text = resources.files("duly.store").joinpath("catalogue.json").read_text(encoding="utf-8")
    document = json.loads(text)
    return Manifest({int(number): made for number, made in document["steps"].items()}, document["routines"])


def facts_of(rows: Iterable[Any], schema: str = DEFAULT_SCHEMA) -> dict[str, str]:
    """The rows of `stores/catalogue` as facts, in the words of the schema duly."""
    return {Thing(row["kind"], row["of"], row["name"]).key: _fact(row, schema) for row in rows}


def _fact(row: Any, schema: str) -> str:
    about, printed = row["about"], row["printed"]
    if row["kind"] not in ("function", "view", "rule"):
        return re.sub(rf"(?<![\w.]){schema}\.(?=\w)", f"{DEFAULT_SCHEMA}.", about)
    # Too long to be kept whole. What stands before a dot is a schema, a table or an alias.
    spaced = re.sub(r"\s+", " ", printed or "")
    words = from_schema(f"{about}\n{spaced}", schema)
    return hashlib.sha256(re.sub(r"\b[a-z_]\w*\.", "", words).encode()).hexdigest()[:20]


async def drift(pool: Pool, *, release: Release | None = None, known: Manifest | None = None) -> list[Difference]:
    """How the store differs from what its recorded steps and routines have made; nothing is changed."""
    release, known = release or this_release(), known or manifest()
    async with pool.transaction() as within:
        # Names are printed with their schema only where the path does not lead to it.
        await within.connection.execute("set local search_path = pg_catalog, pg_temp")
        there = await within.connection.fetchval(
            in_schema("select pg_catalog.to_regclass('duly.migrations') is not null", pool.schema)
        )
        now = Recorded.of(await within.fetch("stores/migrations")) if there else Recorded()
        found = facts_of(await within.fetch("stores/catalogue"), pool.schema) if there else {}
    differences = _of_checksums(now, release)
    if not strange_steps(now, release):
        differences += _of_catalogue(now, release, known, found)
    return [Difference(*(in_schema(part, pool.schema) for part in astuple(one))) for one in differences]


def strange_steps(now: Recorded, release: Release) -> list[str]:
    """The steps of a store that this Duly does not know."""
    own = {step.number for step in release.steps}
    records = [(number, now.of_step(number)) for number in sorted(now.steps - own)]
    return [f"{number:04d}_{record.name}" for number, record in records if record is not None]


def _of_checksums(now: Recorded, release: Release) -> list[Difference]:
    """The steps that were applied from another text than this Duly's."""
    differences = []
    for step in release.steps:
        record = now.of_step(step.number)
        if record is None or record.checksum in _checksums(step):
            continue
        differences.append(
            Difference(
                f"step {step.label}",
                f"was applied from another text (its checksum is {record.checksum[:12]}…, this Duly's is "
                f"{step.checksum[:12]}…)",
                "mend the other differences, if any; then: update duly.migrations set checksum = "  # noqa: S608
                f"'{step.checksum}' where version = {row_of(step.number)}",
            )
        )
    return differences


def _checksums(step: Step) -> tuple[str, ...]:
    return (step.checksum, FIRST_BASELINE) if step.number == BASELINE else (step.checksum,)


def _of_catalogue(now: Recorded, release: Release, known: Manifest, found: Facts) -> list[Difference]:
    wanted = known.after(now.steps)
    routines = _routines(now, release, known)
    differences = []
    for key, about in sorted({**wanted, **(routines or {})}.items()):
        thing = Thing.read(key)
        if key not in found:
            if thing.of is None or f"table {thing.of}" in found or f"view {thing.of}" in found:
                differences.append(_missing(thing, about, is_routine=key in (routines or {})))
        elif found[key] != about:
            differences.append(_changed(thing, about, found[key], is_routine=key in (routines or {})))
    to_come = [(step, known.steps.get(step.number, {})) for step in now.pending(release)]
    names = {
        Thing.read(key).name.partition("(")[0] for key in (*wanted, *(routines or {})) if key.startswith("function")
    }
    for key in sorted(found.keys() - wanted.keys() - (routines or {}).keys()):
        thing = Thing.read(key)
        if (early := next((step for step, made in to_come if made.get(key) is not None), None)) is not None:
            # What a step that runs outside a transaction has made so far, it takes up again.
            if not early.concurrently:
                differences.append(
                    Difference(
                        str(thing),
                        f"is there, but {early.label}, which makes it, is not recorded and would fail",
                        f"look at how it came there, and drop it: {_drop(thing)}",
                    )
                )
        elif f"table {thing.of}" in wanted or (
            routines is not None and thing.kind == "function" and thing.name.partition("(")[0] in names
        ):
            differences.append(
                Difference(str(thing), f"is not Duly's{_said(found[key])}", f"if nothing needs it: {_drop(thing)}")
            )
    return differences


def _routines(now: Recorded, release: Release, known: Manifest) -> Facts | None:
    """What the store's routines are to be; None: this Duly cannot tell, or `duly migrate` puts its own there."""
    record = now.rows.get(ROUTINES)
    if BASELINE not in now.steps:
        return None
    if record is None:
        return known.routines.get(FIRST_VERSION)
    if parsed(record.name) == parsed(release.version) and record.checksum != release.routines.checksum:
        return None
    return known.routines.get(record.name)


def _missing(thing: Thing, about: str, *, is_routine: bool) -> Difference:
    if is_routine:
        return Difference(str(thing), "is missing", _ROUTINES_AGAIN)
    advice = {
        "column": f"alter table {DEFAULT_SCHEMA}.{thing.of} add column {thing.name} {about}",
        "constraint": f"alter table {DEFAULT_SCHEMA}.{thing.of} add constraint {thing.name} {about}",
        "index": about.replace(" INDEX ", " INDEX CONCURRENTLY ", 1),
        "trigger": about,
    }.get(thing.kind)
    run = f"its definition is in: {_SPELT_OUT}" if advice is None else f"run: {advice}"
    return Difference(str(thing), "is missing", run)


def _changed(thing: Thing, about: str, found: str, *, is_routine: bool) -> Difference:
    if is_routine:
        return Difference(str(thing), "is not as Duly made it", _ROUTINES_AGAIN)
    if thing.kind == "index" and found == about + _INVALID:
        return Difference(
            str(thing), "is invalid: its build was interrupted",
            f"run: reindex index concurrently {DEFAULT_SCHEMA}.{thing.name}",
        )  # fmt: skip
    if thing.kind in ("view", "function", "rule"):
        return Difference(str(thing), "is not as Duly made it", f"its definition is in: {_SPELT_OUT}")
    back = {"index": f"drop it, and run: {about}", "constraint": f"drop it, and add: {about}"}
    advice = _column_back(thing, about, found) if thing.kind == "column" else back.get(thing.kind, "change it back")
    return Difference(str(thing), f"is {found!r} and not {about!r}", advice)


def _column_back(thing: Thing, about: str, found: str) -> str:
    alter = f"run: alter table {DEFAULT_SCHEMA}.{thing.of} alter column {thing.name}"
    if about == found + " not null" or about == found.replace(" default ", " not null default ", 1):
        return f"{alter} set not null"
    if found == about + " not null" or found == about.replace(" default ", " not null default ", 1):
        return f"{alter} drop not null"
    without, _, default = about.partition(" default ")
    if without == found.partition(" default ")[0]:
        return f"{alter} set default {default}" if default else f"{alter} drop default"
    return f"{alter} …"


_ROUTINES_AGAIN = "to put Duly's own back: delete from duly.migrations where version = -1; then run: duly migrate"


def _drop(thing: Thing) -> str:
    table = f"{DEFAULT_SCHEMA}.{thing.of}"
    return {
        "column": f"alter table {table} drop column {thing.name}",
        "constraint": f"alter table {table} drop constraint {thing.name}",
        "index": f"drop index concurrently {DEFAULT_SCHEMA}.{thing.name}",
        "trigger": f"drop trigger {thing.name} on {table}",
        "rule": f"drop rule {thing.name} on {table}",
    }.get(thing.kind, f"drop {thing.kind} {DEFAULT_SCHEMA}.{thing.name}")


def _said(about: str) -> str:
    """A fact in brackets, unless it is a hash."""
    return "" if re.fullmatch(r"[0-9a-f]{20}", about) else f" ({about})"
