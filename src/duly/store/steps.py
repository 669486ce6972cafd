"""The versions of a store: the steps and routines that this Duly knows, and those that a store has.

| files | what they are |
| --- | --- |
| `schema/NN_….sql` | the baseline, step 1: the tables that stores of version 0.1.0 have; never edited |
| `migrations/NNNN_name.sql` | a step of the phase `before`: additive, applied before the new code runs |
| `migrations/NNNN_name.after.sql` | a step of the phase `after`: destructive, applied when no older node is alive |
| `routines/NN_….sql` | functions, edited in place, and applied again as a whole when their text has changed |

A step begins with comments of the form `-- key: value`. An `after` step says `-- min_version: 0.3.0`, the oldest Duly
that may run once it is applied. A step that says `-- concurrently` runs outside a transaction.

What a store has is recorded in `duly.migrations`. Version 0.1.0 refuses a store that has a row there whose number is
greater than 1, and its roles may read that table alone; so this version's records have numbers below 1, which 0.1.0
does not look at:

| number | name | checksum |
| --- | --- | --- |
| 1 | `baseline` | of the schema's files |
| 0 | the oldest Duly that may run (`min_version`); no row: any | |
| -1 | the version of Duly whose routines are in the store | of the routines |
| -N | the name of step N | of the step |

When `min_version` rises above 0.1.0, a row with the number 2 is written as well, so that 0.1.0 refuses the store.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Literal

from duly.errors import InvalidInput, StoreMismatch
from duly.version import VERSION, parsed

Phase = Literal["before", "after"]

BASELINE = 1
MIN_VERSION = 0
ROUTINES = -1
# The number of the row that keeps 0.1.0 out.
FENCE = 2
# The checksum of the baseline in stores that 0.1.0 made: there, the routines were part of it.
FIRST_BASELINE = "3f611fc8eb8d8ade781403f12ab936ddb27e0f6df9e5042dc9c8117d141e52fe"
# The newest step of each earlier version. A store of the version before this one is good enough to work on.
RELEASED = {"0.1.0": 1}


def checksum_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    name: str
    sql: str
    phase: Phase = "before"

    @property
    def label(self) -> str:
        return f"{self.number:04d}_{self.name}"

    @property
    def checksum(self) -> str:
        return checksum_of(self.sql)

    @property
    def min_version(self) -> str | None:
        """The oldest Duly that may run once this step is applied."""
        return self._header().get("min_version")

    @property
    def concurrently(self) -> bool:
        return "concurrently" in self._header()

    def _header(self) -> dict[str, str]:
        """The keys and values of the comments at the step's beginning."""
        found: dict[str, str] = {}
        for line in self.sql.splitlines():
            if not line.startswith("--"):
                break
            key, _, value = line.removeprefix("--").partition(":")
            if re.fullmatch(r"\w+", key := key.strip()):
                found[key] = value.strip()
        return found


@dataclass(frozen=True, slots=True)
class Routines:
    """Functions that are applied as a whole. Those of a newer version are left alone."""

    version: str
    texts: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"routines of {self.version}"

    @property
    def checksum(self) -> str:
        return checksum_of("\n".join(self.texts))

    @property
    def names(self) -> list[str]:
        return re.findall(r"^create or replace function duly\.(\w+)", "\n".join(self.texts), re.MULTILINE)

    @property
    def sql(self) -> str:
        """All of them. A function whose arguments have changed is another one to PostgreSQL: the rights of the former
        one go to it, and the former one is dropped. Nobody may call a new one before being allowed to."""
        names = ", ".join(f"'{name}'" for name in self.names)
        before, after = _KEEP.format(names=names), _HAND_ON.format(names=names)
        return "\n".join((before, *self.texts, after))


# The functions of these names, before and after. A function that was replaced lies elsewhere in its table.
_KEEP = """\
select set_config('duly_steps.former_routines', coalesce(json_object_agg(p.oid, p.ctid::text), '{{}}')::text, true)
from pg_proc p
where p.pronamespace = 'duly'::regnamespace and p.proname::text in ({names});
"""
_HAND_ON = """\
do $hand_on$
declare
    former jsonb := current_setting('duly_steps.former_routines')::jsonb;
    fresh record;
    old record;
    given record;
begin
    for fresh in
        select p.oid, p.oid::regprocedure::text as signature, p.proname
        from pg_proc p
        where p.pronamespace = 'duly'::regnamespace and p.proname::text in ({names}) and not former ? p.oid::text
    loop
        execute format('revoke execute on function %s from public', fresh.signature);
        for given in
            select distinct a.grantee, a.is_grantable
            from pg_proc p
            cross join lateral aclexplode(p.proacl) a
            where p.proname = fresh.proname and former ->> p.oid::text = p.ctid::text and a.grantee <> p.proowner
        loop
            execute format('grant execute on function %s to %s%s', fresh.signature,
                case given.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(given.grantee)) end,
                case when given.is_grantable then ' with grant option' else '' end);
        end loop;
    end loop;
    for old in
        select p.oid::regprocedure::text as signature from pg_proc p where former ->> p.oid::text = p.ctid::text
    loop
        execute format('drop function %s', old.signature);
    end loop;
end
$hand_on$;
"""


@dataclass(frozen=True, slots=True)
class Release:
    """One version of Duly, as far as it concerns the store."""

    version: str
    steps: tuple[Step, ...]
    routines: Routines
    required: int
    """The newest step of the version before: a store without it is too old."""

    def check_number(self, number: int | None, field: str) -> None:
        """Refuses the number of a step that does not exist."""
        if number is not None and number not in {step.number for step in self.steps}:
            newest = self.steps[-1]
            raise InvalidInput(
                field, f"there is no step {number}; the newest of this Duly is {newest.number} ({newest.label})"
            )


@cache
def this_release() -> Release:
    files = resources.files("duly.store")
    baseline = Step(BASELINE, "baseline", "\n".join(text for _, text in _files(files / "schema", r"(\d\d)_(\w+)\.sql")))
    texts = tuple(text for _, text in _files(files / "routines", r"(\d\d)_(\w+)\.sql"))
    steps = (baseline, *steps_in(files / "migrations"))
    return Release(VERSION, steps, Routines(VERSION, texts), max(RELEASED.values()))


def steps_in(folder: Traversable) -> list[Step]:
    """The steps of a folder, by number."""
    steps = []
    for match, text in _files(folder, r"(\d{4})_(\w+)(\.after)?\.sql"):
        step = Step(int(match[1]), match[2], text, "after" if match[3] else "before")
        if step.phase == "after" and step.min_version is None:
            raise ValueError(f"{match[0]}: a step of the phase after must say -- min_version: …")
        steps.append(step)
    return steps


def _files(folder: Traversable, pattern: str) -> list[tuple[re.Match[str], str]]:
    """Names and texts of a folder's files, by number."""
    matches = [match for entry in folder.iterdir() if (match := re.fullmatch(pattern, entry.name))]
    return [(match, (folder / match[0]).read_text(encoding="utf-8")) for match in sorted(matches, key=lambda m: m[0])]


@dataclass(frozen=True, slots=True)
class Record:
    """One row of `duly.migrations`."""

    name: str
    checksum: str
    applied_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a store has, by the rows of its `duly.migrations`. A store without any is empty."""

    rows: Mapping[int, Record] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[Any]) -> Recorded:
        return cls({row["version"]: Record(row["name"], row["checksum"], row["applied_at"]) for row in rows})

    @classmethod
    def up_to(cls, number: int, release: Release) -> Recorded:
        """A store that has all steps up to this one, and no routines yet."""
        steps = [step for step in release.steps if step.number <= number]
        return cls({row_of(step.number): Record(step.name, step.checksum) for step in steps})

    @property
    def steps(self) -> frozenset[int]:
        return steps_of(self.rows)

    @property
    def min_version(self) -> str | None:
        row = self.rows.get(MIN_VERSION)
        return None if row is None else row.name

    def of_step(self, number: int) -> Record | None:
        return self.rows.get(row_of(number))

    def pending(self, release: Release) -> list[Step]:
        """The steps that the store lacks."""
        return [step for step in release.steps if step.number not in self.steps]

    def wants(self, routines: Routines) -> bool:
        """Whether these routines are to be put into the store."""
        row = self.rows.get(ROUTINES)
        if row is None:
            return True
        theirs, ours = parsed(row.name), parsed(routines.version)
        return theirs < ours or (theirs == ours and row.checksum != routines.checksum)


def row_of(step: int) -> int:
    """The number of a step's row in `duly.migrations`."""
    return BASELINE if step == BASELINE else -step


def steps_of(numbers: Iterable[int]) -> frozenset[int]:
    """The steps among the numbers of recorded rows."""
    return frozenset(BASELINE if number == BASELINE else -number for number in numbers if number not in _NO_STEPS)


_NO_STEPS = (MIN_VERSION, ROUTINES, FENCE)


def check(recorded: Recorded, release: Release) -> None:
    """Raises if this Duly must not work on the store: it is too old, or its steps have gone too far for this Duly."""
    if BASELINE not in recorded.steps:
        raise StoreMismatch("the store is empty; run: duly migrate")
    check_min_version(recorded.min_version, release)
    if missing := [
        step.label for step in recorded.pending(release) if step.phase == "before" and step.number <= release.required
    ]:
        raise StoreMismatch(
            f"the store is more than one version older than this Duly, {release.version} (missing "
            f"{', '.join(missing)}); run: duly migrate"
        )


def check_min_version(min_version: str | None, release: Release) -> None:
    if min_version is not None and parsed(min_version) > parsed(release.version):
        raise StoreMismatch(
            f"the store is newer than this Duly: it needs version {min_version}, this is {release.version}; upgrade "
            "Duly on this machine"
        )
