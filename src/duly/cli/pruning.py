"""Which imported jobs a table no longer has: `duly import crontab --prune`. Pure: jobs and lines in, a plan out.

A table has a name, its source, and each job carries the sources of the tables that it was imported from as labels.
Equal lines of several tables are one job, so the sources are not part of the dedupe key, and a job goes with its last
source. A job that is pruned is marked before it is cancelled: a line that comes back gets a new job, while the job of a
line that somebody cancelled by hand stays cancelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duly.cli.crontab import Entry, RefusedLine
    from duly.model import Job

#: The labels of every imported job.
IMPORTED = {"imported": "crontab"}
#: The label of a job that was pruned.
PRUNED = "pruned"
_SOURCE = "source"
_LIVE = frozenset({"active", "paused"})
# Fewer jobs than this are cancelled without a limit, however few there are in all.
_HANDFUL = 5
# The share of a table's jobs above which a limit must be given.
_SHARE = 0.2


def sources_of(labels: Mapping[str, str]) -> set[str]:
    return {value for key, value in labels.items() if key == _SOURCE or key.startswith(f"{_SOURCE}.")}


def has_source(labels: Mapping[str, str], source: str) -> bool:
    """Whether the labels are those of a job that is in this table."""
    return source in sources_of(labels) and PRUNED not in labels


def with_source(labels: Mapping[str, str], source: str) -> dict[str, str]:
    labels = {key: value for key, value in labels.items() if key != PRUNED}
    if source in sources_of(labels):
        return labels
    names = (_SOURCE, *(f"{_SOURCE}.{number}" for number in range(2, len(labels) + 3)))
    return {**labels, next(name for name in names if name not in labels): source}


def without_source(labels: Mapping[str, str], source: str) -> dict[str, str]:
    own = {key for key, value in labels.items() if value == source and sources_of({key: value})}
    return {key: value for key, value in labels.items() if key not in own}


def is_imported(job: Job) -> bool:
    """Whether an import has made the job: labels alone can be set by anyone."""
    return job.labels.get("imported") == "crontab" and (job.dedupe_key or "").startswith("crontab:")


def key_for(key: str, known: Mapping[str, Job]) -> str:
    """The dedupe key of a line: its own, unless the job of that key was pruned; then the next that is free."""
    number, tried = 1, key
    while (job := known.get(tried)) is not None and job.status == "cancelled" and PRUNED in job.labels:
        number += 1
        tried = f"{key}#{number}"
    return tried


def is_live(job: Job) -> bool:
    return job.status in _LIVE


@dataclass(frozen=True, slots=True)
class Gone:
    """A job whose line is gone. `edited`: the line that seems to have come in its place."""

    job: Job
    edited: Entry | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a prune does: cancels `cancelled`, and takes the source from `shared`, which other tables have as well.

    `kept`: jobs whose command is in a line that cannot be imported. `unnamed`: imported jobs without a source, which
    are left alone. `total`: the table's live jobs.
    """

    cancelled: list[Gone] = field(default_factory=list)
    shared: list[Job] = field(default_factory=list)
    kept: list[Job] = field(default_factory=list)
    unnamed: list[Job] = field(default_factory=list)
    total: int = 0

    @property
    def needs_limit(self) -> bool:
        """Whether so many jobs would go that the table may be truncated."""
        return len(self.cancelled) > _HANDFUL and len(self.cancelled) > _SHARE * self.total


def make_plan(
    known: Iterable[Job], *, source: str, keys: Sequence[str], entries: Sequence[Entry], refused: Sequence[RefusedLine]
) -> Plan:
    """`keys`: the dedupe keys of the table's lines, in the order of `entries`."""
    live = [job for job in known if is_imported(job) and is_live(job)]
    plan = Plan(total=sum(source in sources_of(job.labels) for job in live))
    there = {job.dedupe_key for job in live}
    new = [entry for entry, key in zip(entries, keys, strict=True) if key not in there]
    for job in live:
        if job.dedupe_key in keys:
            continue
        sources = sources_of(job.labels)
        if not sources:
            plan.unnamed.append(job)
        elif source not in sources:
            continue
        elif any(_command(job) in line.text for line in refused):
            plan.kept.append(job)
        elif len(sources) > 1:
            plan.shared.append(job)
        else:
            edited = next((entry for entry in new if _is_edited(job, entry)), None)
            if edited is not None:
                new.remove(edited)
            plan.cancelled.append(Gone(job, edited))
    return plan


def _command(job: Job) -> str:
    """The command of an imported line: the last argument of its program (`crontab.Entry.argv`)."""
    argv = None if isinstance(job.handler, str) else job.handler.get("argv")
    return str(argv[-1]) if isinstance(argv, list) and argv else ""


def _is_edited(job: Job, entry: Entry) -> bool:
    """The same command at another time, or another command at the same time, for the same user."""
    if job.labels.get("user") != entry.user:
        return False
    when = (job.schedule.upper(), job.timezone) == (entry.schedule.upper(), entry.timezone)
    program = _command(job).split()[:1] == entry.command.split()[:1]
    return _command(job) == entry.command or (when and program)
