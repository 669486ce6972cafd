"""One parser for every form of schedule: the form of the text decides the kind."""

from __future__ import annotations

from datetime import UTC, datetime

from duly.errors import InvalidInput, InvalidSchedule
from duly.formats import quote
from duly.model import DstFold, DstGap

from .cron import make_cron
from .cron_text import check_cron
from .fuel import Fuel
from .interval import is_interval, make_interval
from .once import is_once, make_once, make_once_at, make_once_now
from .rrule import RruleSchedule, is_rrule, make_rrule
from .schedule import Schedule
from .zones import forget_zones, load_zone

__all__ = ["forget_zones", "load_zone", "parse_schedule", "read_schedule"]

# Characters. Far above the longest kind (an RRULE with its dates); the kinds have their own, tighter limits.
_MAX_CHARS = 20_000


def parse_schedule(
    text: str | None,
    *,
    now: datetime,
    timezone: str = "UTC",
    dst_gap: DstGap = "shift",
    dst_fold: DstFold = "first",
    anchor: datetime | None = None,
    starts: bool = False,
    fuel: Fuel | None = None,
) -> Schedule:
    """Parses a schedule from a client.

    `anchor` is the start or creation of the job: intervals count from it, and an RRULE without DTSTART begins there
    (default: `now`). `starts`: it is a start that the client gave, so that an occurrence may be at the anchor itself.
    No text, or `now`, is a one-off at `now`. Raises `InvalidSchedule` for text that cannot be parsed, and for a
    recurring schedule with no occurrence after `now`, or none that can be found in time. A one-off in the past is
    valid: it is due at once.
    """
    if text is not None and not isinstance(text, str):
        raise InvalidSchedule(f"{type(text).__name__} is not a string", part="schedule")
    text = "now" if text is None else text.strip() if len(text) <= _MAX_CHARS else text
    if text.lower() == "now":
        return make_once_at(now, load_zone(timezone))
    fuel = fuel or Fuel()
    anchor = now if anchor is None else anchor
    schedule = read_schedule(text, timezone, dst_gap, dst_fold, anchor, starts=starts, fuel=fuel)
    if schedule.kind == "cron":
        check_cron(text)
    if isinstance(schedule, RruleSchedule) and schedule.dates.added:
        # Dates added to a rule hide the cost of the occurrences after them: the rule itself must not be too costly.
        schedule.without_added().next(now, fuel)
    if schedule.kind != "once" and schedule.next(now, fuel) is None:
        raise InvalidSchedule(f"can never fire again after {now.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z", part="schedule")
    return schedule


def read_schedule(
    text: str,
    timezone: str,
    dst_gap: DstGap,
    dst_fold: DstFold,
    anchor: datetime,
    *,
    starts: bool = False,
    fuel: Fuel | None = None,
) -> Schedule:
    """Parses a schedule whether or not it has occurrences left, as for stored text."""
    zone = load_zone(timezone)
    if dst_gap not in ("shift", "skip"):
        raise InvalidInput("dst_gap", "is not known, use shift or skip")
    if dst_fold not in ("first", "second", "both"):
        raise InvalidInput("dst_fold", "is not known, use first, second or both")
    if not text:
        raise InvalidSchedule(f"is empty, {_FORMS}", part="schedule")
    if text.lower() == "now":
        return make_once_now(zone)
    if len(text) > _MAX_CHARS:
        raise InvalidSchedule(f"a schedule of {len(text)} characters, use at most {_MAX_CHARS}", part="schedule")
    if is_rrule(text):
        return make_rrule(text, zone, dst_gap, dst_fold, anchor, starts=starts, fuel=fuel)
    if is_interval(text):
        return make_interval(text, zone, anchor)
    if is_once(text):
        return make_once(text, zone, dst_gap, dst_fold)
    if text[0].isalpha() and len(text.split(None, 1)) == 1:
        raise InvalidSchedule(f"{quote(text)} is not a schedule, {_FORMS}", part="schedule")
    return make_cron(text, zone, dst_gap, dst_fold)


_FORMS = "use cron (0 9 * * MON), an interval (every 15m), a time (2026-03-08T09:30) or an RRULE (FREQ=DAILY)"
