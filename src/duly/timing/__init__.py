"""Schedules, time zones, missed occurrences and the timing wheel. Pure: no I/O, no clock, no asyncio.

Callers pass `now`. Instants are aware UTC datetimes; a `local` time is in the job's zone.

The data flows: text → `parse` → a `Schedule` (one module per kind: `once`, `cron`, `interval`, `rrule`; local times
become instants in `dst`) → a `Timetable` within the job's bounds, made by its `Definition` → `missed` plans a fire,
from the `cache`; `wheel` says when to look. When the rules of a zone change, `rezoned` says where a plan goes.
`expecting` judges a monitor: when its next ping is due, and what is wrong.
"""

from .cache import next_occurrence
from .definition import Definition, anchor_of
from .fuel import EACH, Fuel
from .idempotency import check_template, render_key
from .missed import Drop, FirePlan, plan_fire, plan_resume
from .parse import parse_schedule
from .rezoned import carried, differing, is_rezoned
from .schedule import Schedule
from .timetable import TOO_FAR, Timetable, jitter_offset
from .wheel import Wheel
from .zones import (
    changed_since,
    forget_zones,
    is_newer,
    load_zone,
    machine_rules,
    machine_version,
    pack_rules,
    unpack_rules,
    use_rules,
)

__all__ = [
    "EACH",
    "TOO_FAR",
    "Definition",
    "Drop",
    "FirePlan",
    "Fuel",
    "Schedule",
    "Timetable",
    "Wheel",
    "anchor_of",
    "carried",
    "changed_since",
    "check_template",
    "differing",
    "forget_zones",
    "is_newer",
    "is_rezoned",
    "jitter_offset",
    "load_zone",
    "machine_rules",
    "machine_version",
    "next_occurrence",
    "pack_rules",
    "parse_schedule",
    "plan_fire",
    "plan_resume",
    "render_key",
    "unpack_rules",
    "use_rules",
]
