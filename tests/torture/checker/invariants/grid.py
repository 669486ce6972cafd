"""`next_run_at` goes forward, along the schedule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ..facts import SECOND, Facts, Job, Version
from ..finding import Finding, moment
from ..records import Operation, micros
from ..stepping import grid_of
from .acknowledged import job_of

NAME = "grid"
# A plan may be written this long after its time was chosen: it may wait for a lock, or for a database that is away.
_WAIT = 60 * SECOND
_SLACK = 2 * SECOND


def check(facts: Facts) -> Iterator[Finding]:
    """`next_run_at` of a job strictly increases, and each value is an occurrence that a scan of the schedule finds.

    An edit plans anew: from the next future occurrence of the edited schedule, and never at or before an occurrence
    that has fired.
    """
    asked: dict[str, list[Operation]] = defaultdict(list)
    for operation in facts.records.operations:
        if operation.op in ("resume", "change") and operation.outcome != "failed":
            job_id, _ = job_of(facts, operation)
            asked[str(job_id)].append(operation)
    for job in facts.jobs.values():
        fired: list[int] = []
        for version in job.versions:
            old, new = version.old_next_run_at, version.next_run_at
            if version.retracted:
                fired = [at for at in fired if at < min(version.retracted)]
            elif old is not None and new != old and not version.edit:
                fired.append(old)
            if new is not None and new == old and not version.edit and _was_fired(facts, job, version, new):
                yield Finding(
                    NAME,
                    f"{facts.job_called(job.job_id)} run {moment(new)}: fired at {moment(version.transaction.at)}, "
                    "but next_run_at "
                    "did not move",
                    [version.old or {}, version.row],
                )
            if new is None or new == old:
                continue
            consumed = max(fired, default=None)
            if consumed is not None and new <= consumed:
                yield Finding(
                    NAME,
                    f"{facts.job_called(job.job_id)} run {moment(new)}: next_run_at was set to it at "
                    f"{moment(version.transaction.at)}, but "
                    f"{moment(consumed)} had fired already",
                    [version.old or {}, version.row],
                )
                continue
            yield from _on_grid(facts, job, version, new, asked[job.job_id])


def _asked_at(asked: list[Operation], at: int) -> int:
    """The earliest time at which the plan made at `at` may have been requested."""
    under_way = [one.invoked for one in asked if one.invoked <= at + _SLACK and at <= one.returned + _SLACK]
    return min(under_way, default=at - _WAIT)


def _was_fired(facts: Facts, job: Job, version: Version, due: int) -> bool:
    born = facts.born_in.get((job.job_id, version.transaction.index), ())
    return any(birth.key[1] == due for birth in born)


def _on_grid(facts: Facts, job: Job, version: Version, new: int, asked: list[Operation]) -> Iterator[Finding]:
    # A fire plans by the schedule that it read, and moves the job only if the row did not change meanwhile.
    grid = grid_of(version.row if version.edit or version.old is None else version.old)
    if grid is None:
        return
    at = version.transaction.at
    called = f"{facts.job_called(job.job_id)} run {moment(new)}"
    if grid.once:
        named = grid.between(0, 1 << 60)
        # If the time has passed, the job is due at once.
        if new not in named and not at - _WAIT <= new <= at + _SLACK:
            yield Finding(
                NAME,
                f"{called}: planned at {moment(at)}, but the schedule {grid.text} says "
                f"{moment(named[0] if named else at)}",
                [version.row],
            )
        return
    if new in version.retracted and new <= at + _SLACK:
        return  # retracted, but due by now: it still fires by the old schedule, and the new schedule begins after it
    if not grid.holds(new):
        yield Finding(
            NAME,
            f"{called}: planned at {moment(at)}, but {grid.text} (anchor {moment(grid.anchor)}) has no occurrence "
            "then; the next one "
            f"is {moment(grid.first_after(at))}",
            [version.row],
        )
    elif version.edit and new < (since := _asked_at(asked, at)) - _SLACK:
        yield Finding(
            NAME,
            f"{called}: planned anew at {moment(at)}, but it was past when the edit was requested at {moment(since)}",
            [version.row],
        )
    elif version.edit:
        skipped = grid.between(at + _SLACK, new - 1)
        if skipped:
            yield Finding(
                NAME,
                f"{called}: planned anew at {moment(at)}, but {grid.text} has {moment(skipped[0])} before it",
                [version.row],
            )
    elif new <= (created := micros(version.row["created_at"])):
        yield Finding(
            NAME, f"{called}: planned at {moment(at)}, before the job was created ({moment(created)})", [version.row]
        )
