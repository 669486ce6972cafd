"""Reading the audit trail: who did what, when, through which door, and why."""

from __future__ import annotations

from duly import checks
from duly.errors import InvalidInput
from duly.model import AuditEntry, AuditFilter, Page, from_micros, to_micros
from duly.operations.core import INVALID_CURSOR, MAX_PAGE, Core, to_job_id
from duly.store import audit
from duly.store.audit import Position

ANYTHING = AuditFilter()
_FROM_THE_END: Position = (checks.LAST_MOMENT, 0)


class AuditOperations:
    """The audit trail of one tenant."""

    def __init__(self, core: Core, tenant: str) -> None:
        self._pool = core.pool
        self._tenant = tenant

    async def page(
        self, wanted: AuditFilter = ANYTHING, *, cursor: str | None = None, limit: int = 100
    ) -> Page[AuditEntry]:
        """One page of entries, newest first. A page ends at `limit`, or where a statement has read its maximum of rows:
        it may be empty and yet not the last. A store that is not migrated yet has no entries."""
        limit = checks.check_integer("limit", limit, 1, MAX_PAGE)
        for field in ("actor", "action"):
            if (value := getattr(wanted, field)) is not None:
                checks.check_text(field, value, longest=200)
        since = checks.check_moment("since", wanted.since) or checks.FIRST_MOMENT
        until = checks.check_moment("until", wanted.until) or checks.LAST_MOMENT
        before = _FROM_THE_END if cursor is None else _read_cursor(cursor)
        job_id = None if wanted.job_id is None else to_job_id(wanted.job_id)
        if not audit.exists(self._pool):
            return Page([], None)
        listed = await audit.page(
            self._pool,
            tenant=self._tenant,
            job_id=job_id,
            actor=wanted.actor,
            action=wanted.action,
            since=since,
            until=until,
            before=before,
            limit=limit + 1,
        )
        shown = listed.entries[:limit]
        stop = shown[-1][0] if len(listed.entries) > limit else listed.stop
        return Page([entry for _, entry in shown], None if stop is None else _cursor(stop))


def _cursor(position: Position) -> str:
    at, audit_id = position
    return f"{to_micros(at):x}.{audit_id:x}"


def _read_cursor(text: str) -> Position:
    moment, _, audit_id = text.partition(".")
    try:
        at, number = from_micros(int(moment, 16)), int(audit_id, 16)
    except (ValueError, OverflowError) as error:
        raise InvalidInput("cursor", INVALID_CURSOR) from error
    if not (0 <= number < 1 << 63 and checks.FIRST_MOMENT <= at <= checks.LAST_MOMENT):
        raise InvalidInput("cursor", INVALID_CURSOR)
    return at, number
