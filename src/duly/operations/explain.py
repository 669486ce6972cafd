"""Explanations of what became of an occurrence and why. This file reads the records, `verdicts` judges them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice

from duly import checks
from duly.errors import InvalidInput, TooCostly
from duly.formats import utc_text
from duly.model import Explanation, Job, Occurrence, Page, Verdict
from duly.operations.core import INVALID_CURSOR, MAX_PAGE, Core
from duly.operations.jobs import JobOperations
from duly.operations.lifetime import Lifetime, local_time
from duly.operations.runs import with_key
from duly.operations.verdicts import Judge
from duly.store import changes, cluster, history
from duly.store.cluster import Leader
from duly.store.history import Record
from duly.timing import TOO_FAR, Fuel, jitter_offset

MAX_RANGE = 10_000
# Changes of a job that are read at most: years of pausing and resuming every hour. Earlier ones are ignored.
_MAX_CHANGES = 20_000


class ExplainOperations:
    """Explanations of the occurrences of one tenant's jobs."""

    def __init__(self, core: Core, jobs: JobOperations) -> None:
        self._core = core
        self._pool = core.pool
        self._jobs = jobs

    async def occurrence(self, job_id: str, *, at: datetime | None = None) -> Explanation:
        """Explain the occurrence at this time.

        If there is no occurrence at this time, the answer says so, names the nearest ones, and explains the previous
        one as `related`. Without a time: explains the last expected occurrence, and the next one as `related`.
        """
        asked = checks.check_moment("at", at)
        job = await self._jobs.get(job_id)
        life, leader = await self._lifetime(job)
        if asked is None:
            return await self._explain_last(life, leader)
        found = life.at(asked)
        if found is None and job.policy.jitter_seconds:
            # The caller may give the schedule's own time, without the job's jitter.
            found = life.at(asked + jitter_offset(job.job_id, job.policy.jitter_seconds))
        judge = await self._judge(life, leader, *([asked] if found is None else [found.scheduled_at]))
        if found is None and asked in judge.recorded:
            found = Occurrence(asked, local_time(asked, job.timezone))
        if found is not None:
            return judge.judge(found)
        answer = judge.not_an_occurrence(asked)
        before = life.before(asked)
        if before is None:
            return answer
        return replace(answer, related=await self._explain_one(life, leader, before))

    async def between(self, job_id: str, *, start: datetime, end: datetime, limit: int = 1000) -> list[Explanation]:
        """Explain every expected occurrence in [start, end] and every other run, oldest first, at most `limit`."""
        first, last = checks.check_moment("start", start), checks.check_moment("end", end)
        assert first is not None
        assert last is not None
        if last < first:
            raise InvalidInput("end", "must not be before start")
        checks.check_integer("limit", limit, 1, MAX_RANGE)
        job = await self._jobs.get(job_id)
        life, leader = await self._lifetime(job, Fuel.for_list(limit))
        judge = await self._judge(life, leader, first, last, limit=limit)
        found = {one.scheduled_at: one for one in islice(life.expected(first, last), limit)}
        cut = life.cut
        for moment in judge.recorded:
            if first <= moment <= last and moment not in found:
                found[moment] = Occurrence(moment, local_time(moment, job.timezone))
        explained = [judge.judge(found[moment]) for moment in sorted(found)[:limit]]
        if cut:
            if not explained:
                raise TooCostly
            # As in any list of occurrences, the last one says that more would take too long.
            note = "; ".join(filter(None, (explained[-1].note, TOO_FAR)))
            explained[-1] = replace(explained[-1], note=note)
        return explained

    async def page(
        self,
        job_id: str,
        *,
        start: datetime,
        end: datetime | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Explanation]:
        """One page of `between`, up to now if no end is given. The cursor is the time at which the next page begins."""
        limit = checks.check_integer("limit", limit, 1, MAX_PAGE)
        first = checks.check_moment("from", start)
        last = self._core.now() if end is None else checks.check_moment("to", end)
        assert first is not None
        assert last is not None
        if end is not None and last < first:
            raise InvalidInput("to", "must not be before from")
        if cursor is not None:
            try:
                at = checks.check_moment("cursor", datetime.fromisoformat(cursor))
            except ValueError as error:
                raise InvalidInput("cursor", INVALID_CURSOR) from error
            first = first if at is None else max(first, at)
        if last < first:  # start lies in the future and no end is given: nothing to explain yet
            await self._jobs.get(job_id)
            return Page([], None)
        found = await self.between(job_id, start=first, end=last, limit=limit + 1)
        more = len(found) > limit
        return Page(found[:limit], found[limit].scheduled_at.isoformat() if more else None)

    async def _explain_last(self, life: Lifetime, leader: Leader) -> Explanation:
        job = life.job
        # The last run of an ended job says more than the occurrence that its schedule would have next.
        until = job.last_run_at if life.ended and job.last_run_at is not None else leader.now
        last = life.before(until)
        coming = None if life.ended or job.status == "cancelled" else life.after(leader.now)
        if last is None:
            last, coming = coming, None
        if last is None:
            judge = await self._judge(life, leader, leader.now)
            return judge.not_an_occurrence(leader.now)
        answer = _also_cancelled(life, await self._explain_one(life, leader, last))
        return answer if coming is None else replace(answer, related=await self._explain_one(life, leader, coming))

    async def _explain_one(self, life: Lifetime, leader: Leader, occurrence: Occurrence) -> Explanation:
        return (await self._judge(life, leader, occurrence.scheduled_at)).judge(occurrence)

    async def _lifetime(self, job: Job, fuel: Fuel | None = None) -> tuple[Lifetime, Leader]:
        assert job.shard is not None
        noted, leader = await asyncio.gather(
            changes.of_job(self._pool, job_id=job.job_id, limit=_MAX_CHANGES),
            cluster.leader_of(self._pool, shard=job.shard),
        )
        return Lifetime(job, noted, fuel), leader

    async def _judge(
        self, life: Lifetime, leader: Leader, first: datetime, last: datetime | None = None, *, limit: int = 1
    ) -> Judge:
        job = life.job
        assert job.shard is not None
        records, catch_ups, days = await asyncio.gather(
            history.records_between(
                self._pool, job_id=job.job_id, shard=job.shard, first=first, last=last or first, limit=limit
            ),
            history.catch_ups(self._pool, job_id=job.job_id),
            history.days_kept(self._pool),
        )
        grace = timedelta(seconds=self._core.settings.misfire_grace_seconds)
        return Judge(life, [_keyed(record, job) for record in records], catch_ups, leader, days, grace)


def _keyed(record: Record, job: Job) -> Record:
    try:
        return replace(record, run=with_key(record.run, job))
    except InvalidInput:  # the key names a local time, and the zone is no longer known
        return record


def _also_cancelled(life: Lifetime, answer: Explanation) -> Explanation:
    """Adds to the explanation of a cancelled job's last run that no more runs will come."""
    if life.job.status != "cancelled" or not life.stops or answer.verdict is Verdict.CANCELLED:
        return answer
    at = life.stops[-1].change.at
    sentence = f"{answer.sentence} The job was cancelled at {utc_text(at)}: nothing more of it runs."
    return replace(answer, sentence=sentence, facts={**answer.facts, "cancelled_at": at})
