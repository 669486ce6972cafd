"""Time zones by their IANA names, and nothing but those."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from zoneinfo import ZoneInfo

from duly.errors import InvalidInput

# A name's shape. Dots, a leading slash and empty parts are out, so no name leads out of the time-zone data.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,3}", re.ASCII)
_LONGEST = 64
# Files that lie beside the zones and are none, or mean another thing on every machine.
_NOT_ZONES = frozenset({"localtime", "posixrules", "Factory", "leapseconds", "leap-seconds", "tzdata", "zone"})
_NOT_FOLDERS = ("right/", "posix/")

_forgetters: list[Callable[[], None]] = []


def load_zone(name: str) -> ZoneInfo:
    """The zone of that IANA name; `InvalidInput` on `timezone` for anything else.

    A zone found is remembered, a zone not found is not: when it comes back to the time-zone data it is found again.
    """
    name = str(name)  # None and numbers from careless callers are refused like any other wrong name
    if len(name) > _LONGEST or not _NAME.fullmatch(name):
        raise InvalidInput("timezone", f"{name[:_LONGEST]!r} is not an IANA zone name such as Europe/Berlin")
    if name in _NOT_ZONES or name.startswith(_NOT_FOLDERS):
        raise InvalidInput("timezone", f"{name} is not a zone to schedule in, use an IANA name such as Europe/Berlin")
    return _load(name)


@lru_cache(maxsize=1024)
def _load(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, ImportError) as error:
        raise InvalidInput("timezone", f"no zone {name} in this machine's time-zone data") from error


def when_forgotten(forget: Callable[[], None]) -> None:
    """Register a cache that holds zones, to be emptied by `forget_zones`."""
    _forgetters.append(forget)


def forget_zones() -> None:
    """Read every zone anew from now on: the time-zone data may have changed under us."""
    ZoneInfo.clear_cache()
    _load.cache_clear()
    for forget in _forgetters:
        forget()
