"""Reading runs, live or ended, and cancelling one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from duly import checks
from duly.errors import Conflict, InvalidInput, NotFound
from duly.model import Actor, Job, LogLine, LogPage, Page, Run, parse_run_id
from duly.operations.core import INVALID_CURSOR, MAX_PAGE, Core, check_reason, to_job_id
from duly.states import ENDED_STATES
from duly.store import history, jobs, run_logs, runs
from duly.timing import render_key

#: Maximum number of lines of a page of a run's log, and of parts that are read for it.
MAX_LOG_PAGE = 10_000
MAX_PARTS = 200
#: Shortest and longest pause between two looks of a follower, in seconds.
FOLLOW_SECONDS = (0.5, 3.0)
_MAX_ATTEMPT = 32_767
_CURSOR = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9]{1,9}")


class RunOperations:
    """The runs of one tenant's jobs."""

    def __init__(self, core: Core, tenant: str, actor: Actor) -> None:
        self._pool = core.pool
        self._tenant = tenant
        self._actor = actor

    async def page(self, job_id: str, *, cursor: str | None = None, limit: int = 100) -> Page[Run]:
        """Live and ended runs of one job, newest first."""
        job = await jobs.get(self._pool, job_id=to_job_id(job_id), tenant=self._tenant)
        if job is None:
            raise NotFound(f"there is no job {job_id}")
        limit = checks.check_integer("limit", limit, 1, MAX_PAGE)
        before = checks.LAST_MOMENT
        if cursor is not None:
            try:
                before = checks.check_moment("cursor", datetime.fromisoformat(cursor)) or checks.LAST_MOMENT
            except ValueError as error:
                raise InvalidInput("cursor", INVALID_CURSOR) from error
        moments = await history.job_run_times(self._pool, job_id=job.job_id, before=before, limit=limit + 1)
        found = await history.runs_page(self._pool, job_id=job.job_id, moments=moments[:limit])
        items = [with_key(run, job) for run in found]
        more = bool(items) and items[-1].scheduled_at != moments[-1]
        return Page(items, items[-1].scheduled_at.isoformat() if more else None)

    async def get(self, run_id: str) -> Run:
        """One run, live or ended, with all of its attempts."""
        parsed = parse_run_id(run_id)
        job = None if parsed is None else await jobs.get(self._pool, job_id=parsed[0], tenant=self._tenant)
        if parsed is not None and job is not None:
            for _ in range(3):  # a statement may see a moving run neither where it was nor where it goes
                run = await history.get_run(self._pool, job_id=parsed[0], scheduled_at=parsed[1])
                if run is not None:
                    return with_key(run, job)
        raise NotFound(f"there is no run {run_id[:100]!r}", kind="run", sought=run_id)

    async def logs(
        self,
        run_id: str,
        *,
        cursor: str | None = None,
        attempt: int | None = None,
        tail: int | None = None,
        since: datetime | None = None,
        limit: int = 1000,
    ) -> LogPage:
        """What the run's handler logged and printed, in order: a page from a cursor on, else the last `tail` lines.

        `since`: without the lines before that moment. The cursor of any page goes on where it ended, also later, when
        there is more.
        """
        run = parse_run_id(run_id)
        after = run_logs.START if cursor is None else _read_cursor(cursor)
        attempt = None if attempt is None else checks.check_integer("attempt", attempt, 1, _MAX_ATTEMPT)
        limit = checks.check_integer("limit", limit, 1, MAX_LOG_PAGE)
        if tail is not None:
            limit = checks.check_integer("tail", tail, 1, MAX_LOG_PAGE)
        if run is None or await jobs.get(self._pool, job_id=run[0], tenant=self._tenant) is None:
            raise NotFound(f"there is no run {run_id[:100]!r}", kind="run", sought=run_id)
        job_id, scheduled_at = run
        # Asked first: what is written before a log is complete is then found below.
        complete = await run_logs.is_complete(self._pool, job_id=job_id, scheduled_at=scheduled_at)
        if not complete and cursor is None and await self._is_unknown(job_id, scheduled_at):
            raise NotFound(f"there is no run {run_id[:100]!r}", kind="run", sought=run_id)
        more = False
        if not self._pool.has_step(run_logs.STEP):
            found = []
        elif tail is not None and cursor is None:
            found = await run_logs.read_last(
                self._pool, job_id=job_id, scheduled_at=scheduled_at, attempt=attempt, limit=min(limit, MAX_PARTS)
            )
            found = found[-limit:]
        else:
            found, more = await run_logs.read(
                self._pool, job_id=job_id, scheduled_at=scheduled_at, after=after, attempt=attempt,
                limit=min(limit, MAX_PARTS),
            )  # fmt: skip
            more, found = more or len(found) > limit, found[:limit]
        position = found[-1][0] if found else after
        items = [line for _, line in found if since is None or line.at >= since]
        return LogPage(items, _cursor_at(position), more, complete and not more)

    async def follow(
        self, run_id: str, *, cursor: str | None = None, attempt: int | None = None, tail: int | None = None
    ) -> AsyncIterator[LogPage]:
        """The run's log as `logs` reads it, and then what is added, until the run has ended. Pages without lines are
        yielded too, every few seconds, so that a reader can tell that nothing was said.

        While nothing is added, it costs two statements every few seconds.
        """
        page = await self.logs(run_id, cursor=cursor, attempt=attempt, tail=tail)
        yield page
        parsed, pause, complete = parse_run_id(run_id), FOLLOW_SECONDS[0], page.complete
        assert parsed is not None
        job_id, scheduled_at = parsed
        after = _read_cursor(page.cursor)
        while not page.complete:
            found: list[tuple[run_logs.Position, LogLine]] = []
            if self._pool.has_step(run_logs.STEP):
                found, _ = await run_logs.read(
                    self._pool, job_id=job_id, scheduled_at=scheduled_at, after=after, attempt=attempt, limit=MAX_PARTS
                )
            if not found and not complete:
                # What is written before a log is complete is found by one more read.
                complete = await run_logs.is_complete(self._pool, job_id=job_id, scheduled_at=scheduled_at)
                if not complete:
                    yield LogPage([], page.cursor, False, False)
                    await asyncio.sleep(pause)
                    pause = min(1.5 * pause, FOLLOW_SECONDS[1])
                continue
            after, pause = (found[-1][0] if found else after), FOLLOW_SECONDS[0]
            page = LogPage([line for _, line in found], _cursor_at(after), bool(found), not found)
            yield page
            if found and not complete:
                await asyncio.sleep(pause)

    async def follow_lines(
        self, run_id: str, *, attempt: int | None = None, tail: int | None = None
    ) -> AsyncIterator[LogLine]:
        """The lines of `follow`."""
        async for page in self.follow(run_id, attempt=attempt, tail=tail):
            for line in page.items:
                yield line

    async def _is_unknown(self, job_id: UUID, scheduled_at: datetime) -> bool:
        for _ in range(3):  # a statement may see a moving run neither where it was nor where it goes
            if await history.get_run(self._pool, job_id=job_id, scheduled_at=scheduled_at) is not None:
                return False
        return True

    async def recent(self, *, limit: int = 50) -> list[Run]:
        """The runs of all jobs that ended last."""
        return await history.recent_runs(
            self._pool, tenant=self._tenant, limit=checks.check_integer("limit", limit, 1, 500)
        )

    async def cancel(self, run_id: str, *, reason: str | None = None) -> Run:
        """Cancel a run. A waiting run ends at once; an executing one is told to stop, and ends as its handler does."""
        check_reason(reason)
        run = await self.get(run_id)
        note = self._actor.note(reason=reason, tenant=self._tenant, object=run.run_id)
        for _ in range(10):
            if run.status in ENDED_STATES:
                raise Conflict(f"run {run_id} cannot be cancelled: it is {run.status}")
            became = await runs.cancel(
                self._pool, job_id=run.job_id, scheduled_at=run.scheduled_at, tenant=self._tenant, note=note
            )
            run = await self.get(run_id)
            if became is not None:
                return run
            # The run was claimed, retried or ended meanwhile: read it again.
        raise Conflict(f"run {run_id} could not be cancelled; try again")


def _cursor_at(position: run_logs.Position) -> str:
    return f"{position.claim_id}.{position.number}"


def _read_cursor(cursor: str) -> run_logs.Position:
    claim, _, number = cursor.partition(".")
    if not _CURSOR.fullmatch(cursor):
        raise InvalidInput("cursor", INVALID_CURSOR)
    return run_logs.Position(UUID(claim), int(number))


def with_key(run: Run, job: Job) -> Run:
    """The run with the idempotency key that its handler gets; without one if a manual write spoilt the template."""
    try:
        key = render_key(
            job.policy.idempotency_key_template,
            job_id=job.job_id,
            name=job.name,
            scheduled_at=run.scheduled_at,
            timezone=job.timezone,
        )
    except InvalidInput:
        key = None
    return replace(run, idempotency_key=key, job_name=job.name)
