"""Monitors: what runs elsewhere and is watched by its pings; and the door for pings that need no key.

A monitor's ping address, `/ping/TOKEN`, holds a secret of its own, with which one can ping this monitor and nothing
else: a crontab needs no key that could do more. The store has the hash of the token, so an address is shown once, when
it is made.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from duly import checks
from duly.errors import Conflict, InvalidInput, LimitReached, NotFound, StoreBusy
from duly.model import Monitor, MonitorDefinition, Page, PingEvent, ScheduleKind, StoredMonitor
from duly.operations.core import INVALID_CURSOR, MAX_PAGE, Core
from duly.rates import TokenBucket
from duly.store import incidents, monitors
from duly.store.incidents import Closing
from duly.store.pool import Pool, Querier
from duly.timing import Fuel, parse_schedule
from duly.timing.expecting import Judgement, judge

# Monitors of one tenant.
MAX_MONITORS = 10_000
MAX_SECONDS = 366 * 86_400
MAX_DESCRIPTION = 500
#: Characters of a ping's body, of which the first are kept, and of the id of what runs.
MAX_NOTE = 500
MAX_RID = 64
SLUG = r"[a-z0-9][a-z0-9_-]{0,99}"
RID = rf"[A-Za-z0-9._:-]{{1,{MAX_RID}}}"
TOKEN = r"[A-Za-z0-9_-]{32}"  # noqa: S105 - its form
OUTCOME = r"(start|fail|log|[0-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-5])"
_SLUG, _RID, _TOKEN, _OUTCOME = (re.compile(pattern) for pattern in (SLUG, RID, TOKEN, OUTCOME))
# Unknown tokens that are looked up in a second, pings of one token in a second, and tokens that are remembered.
_UNKNOWN_PER_SECOND = 50.0
_PINGS_PER_SECOND = 10.0
_MAX_KNOWN = 10_000


class MonitorOperations:
    """The monitors of one tenant."""

    def __init__(self, core: Core, tenant: str) -> None:
        self._pool = core.pool
        self._now = core.now
        self._tenant = tenant

    async def set(self, slug: str, definition: MonitorDefinition, *, new_token: bool = False) -> tuple[Monitor, bool]:
        """Make a monitor or give it this definition; it, and whether it is new. A new one, and with `new_token` any,
        comes with its ping address, which is not shown again."""
        self._ensure_kept()
        if problems := problems_of(slug, definition):
            raise problems[0]
        checked, kind = _parsed(definition)
        token = secrets.token_urlsafe(24)
        stored = await monitors.set_monitor(
            self._pool,
            tenant=self._tenant,
            slug=slug,
            definition=checked,
            kind=kind,
            token=_digest(token),
            new_token=new_token,
            limit=MAX_MONITORS,
        )
        if stored is None:
            raise LimitReached(f"this tenant has {MAX_MONITORS} monitors, which is as many as it may have")
        monitor, created = stored
        shown = self._shown(monitor)
        return (replace(shown, ping_path=f"/ping/{token}") if created or new_token else shown), created

    async def get(self, slug: str) -> Monitor:
        found = await monitors.get(self._pool, tenant=self._tenant, slug=self._known(slug))
        if found is None:
            raise _missing(slug)
        return self._shown(found)

    async def page(self, *, cursor: str | None = None, limit: int = 100) -> Page[Monitor]:
        """One page of monitors, by slug, without their pings."""
        checks.check_integer("limit", limit, 1, MAX_PAGE)
        if cursor is not None and not _SLUG.fullmatch(cursor):
            raise InvalidInput("cursor", INVALID_CURSOR)
        if not self._pool.has_step(monitors.STEP):
            return Page([], None)
        found = await monitors.page(self._pool, tenant=self._tenant, after=cursor, limit=limit + 1)
        shown = [replace(self._shown(one), pings=()) for one in found[:limit]]
        return Page(shown, shown[-1].slug if len(found) > limit else None)

    async def remove(self, slug: str) -> None:
        """Delete a monitor. Its open incidents are closed."""
        key = self._known(slug)

        async def delete(store: Querier) -> bool:
            if not await monitors.remove(store, tenant=self._tenant, slug=key):
                return False
            if store.has_step(incidents.STEP):
                found = await incidents.open_of_monitors(store, [(self._tenant, key)])
                await incidents.close_many(
                    store, [Closing(one.incident_id, "the monitor was removed") for one in found]
                )
            return True

        if not await self._pool.together(delete):
            raise _missing(slug)

    async def ping(
        self,
        slug: str,
        event: PingEvent = "success",
        *,
        rid: str | None = None,
        exit_status: int | None = None,
        note: str | None = None,
    ) -> None:
        """Note that it starts, has succeeded or has failed. `rid`: an id of what runs, where runs overlap."""
        key = self._known(slug)
        check_rid(rid)
        found = await monitors.ping(
            self._pool,
            event=event,
            tenant=self._tenant,
            slug=key,
            rid=rid or "",
            exit_status=exit_status,
            note=kept_note(note),
        )
        if not found:
            raise _missing(slug)

    def _known(self, slug: str) -> str:
        if not _SLUG.fullmatch(slug) or not self._pool.has_step(monitors.STEP):
            raise _missing(slug)
        return slug

    def _ensure_kept(self) -> None:
        if not self._pool.has_step(monitors.STEP):
            raise Conflict("this store has no monitors yet: duly migrate")

    def _shown(self, stored: StoredMonitor) -> Monitor:
        return shown_monitor(stored, self._now())


class PingDoor:
    """Pings by token, of all tenants. Guessing is slow: an unknown token costs a look-up, of which there are few."""

    def __init__(self, pool: Pool, clock_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000) -> None:
        self._pool = pool
        self._clock_us = clock_us
        self._unknown = TokenBucket(_UNKNOWN_PER_SECOND)
        self._known: OrderedDict[bytes, TokenBucket] = OrderedDict()

    async def ping(
        self, token: str, event: PingEvent, *, rid: str | None, exit_status: int | None, note: str | None
    ) -> None:
        """Raises `NotFound` for a token of no monitor, `StoreBusy` for too many pings."""
        check_rid(rid)
        if not _TOKEN.fullmatch(token) or not self._pool.has_step(monitors.STEP):
            raise NotFound("there is no monitor with this ping address")
        digest = _digest(token)
        bucket = self._known.get(digest, self._unknown)
        if not bucket.take(1, self._clock_us()):
            raise StoreBusy("too many pings: try again in a second")
        found = await monitors.ping(
            self._pool, event=event, token=digest, rid=rid or "", exit_status=exit_status, note=kept_note(note)
        )
        if not found:
            self._known.pop(digest, None)
            raise NotFound("there is no monitor with this ping address")
        if bucket is self._unknown:
            bucket.give_back(1)
            self._known[digest] = TokenBucket(_PINGS_PER_SECOND)
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)


def shown_monitor(stored: StoredMonitor, now: datetime) -> Monitor:
    definition = MonitorDefinition(
        stored.schedule, stored.timezone, stored.grace_seconds, stored.max_runtime_seconds, stored.description
    )
    try:
        judged = judge(stored, now)
    except InvalidInput as error:  # its zone is gone from the time-zone data
        judged = Judgement("down", None, None, {"unreadable": str(error)}, None)
    return Monitor(
        slug=stored.slug,
        definition=definition,
        state=judged.state,
        why="; ".join(judged.wrong.values()) or None,
        expected_at=judged.expected_at,
        down_at=judged.down_at,
        last_start_at=stored.last_start_at,
        last_success_at=stored.last_success_at,
        last_failure_at=stored.last_failure_at,
        running=len(stored.starts),
        created_at=stored.created_at,
        updated_at=stored.updated_at,
        pings=stored.pings,
    )


def problems_of(slug: object, definition: MonitorDefinition) -> list[InvalidInput]:
    """The errors of all wrong fields."""
    found: list[InvalidInput] = []

    def judged(check: Callable[[], object]) -> None:
        try:
            check()
        except InvalidInput as error:
            found.append(error)

    if not isinstance(slug, str) or not _SLUG.fullmatch(slug):
        found.append(InvalidInput("slug", "must be 1 to 100 of a-z, 0-9, - and _, as in nightly-backup"))
    judged(lambda: checks.check_integer("grace_seconds", definition.grace_seconds, 0, MAX_SECONDS))
    if (longest := definition.max_runtime_seconds) is not None:
        judged(lambda: checks.check_integer("max_runtime_seconds", longest, 1, MAX_SECONDS))
    if (text := definition.description) is not None:
        judged(lambda: checks.check_text("description", text, longest=MAX_DESCRIPTION))
    judged(lambda: _parsed(definition))
    return found


def outcome_of(text: str) -> tuple[PingEvent, int | None]:
    """The end of a ping's address: `start`, `fail`, `log` or an exit status, of which 0 is a success."""
    if not _OUTCOME.fullmatch(text):
        raise InvalidInput("outcome", "must be start, fail, log or an exit status from 0 to 255")
    if text == "start":
        return "start", None
    if text == "fail":
        return "failure", None
    if text == "log":
        return "note", None
    return ("success" if int(text) == 0 else "failure"), int(text)


def check_rid(rid: str | None) -> None:
    if rid is not None and not _RID.fullmatch(rid):
        raise InvalidInput("rid", f"must be 1 to {MAX_RID} of letters, digits and . _ : -")


def kept_note(note: str | None) -> str | None:
    """The beginning of a note, which is all that is kept. PostgreSQL stores no NUL and no lone surrogate."""
    if note is None or not (text := note.strip()):
        return None
    return text[:MAX_NOTE].replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def _parsed(definition: MonitorDefinition) -> tuple[MonitorDefinition, ScheduleKind]:
    """The definition with its schedule in the canonical form, and the kind of the schedule."""
    checks.check_text("timezone", definition.timezone, longest=100)
    now = datetime.now(UTC)
    fuel = Fuel()
    parsed = parse_schedule(
        checks.check_text("schedule", definition.schedule, longest=1000),
        now=now,
        timezone=definition.timezone,
        anchor=now,
        fuel=fuel,
    )
    if parsed.kind == "once":
        raise InvalidInput("schedule", "must be a recurring one, such as 0 3 * * * or every 15m")
    if parsed.next(now) is None:
        raise InvalidInput("schedule", "has no occurrence left")
    return replace(definition, schedule=parsed.canonical), parsed.kind


def _missing(slug: str) -> NotFound:
    return NotFound(f"there is no monitor {slug[:100]!r}")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
