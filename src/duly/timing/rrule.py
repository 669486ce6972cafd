"""placeholder"""

from __future__ import annotations
from datetime import datetime
from zoneinfo import ZoneInfo
from duly.model import DstFold, DstGap
from .schedule import Schedule


def is_rrule(text: str) -> bool:
    return text[:10].upper().startswith(("RRULE", "DTSTART", "RDATE", "EXDATE", "EXRULE", "FREQ="))


def make_rrule(text: str, zone: ZoneInfo, dst_gap: DstGap, dst_fold: DstFold, anchor: datetime) -> Schedule:
    raise NotImplementedError
