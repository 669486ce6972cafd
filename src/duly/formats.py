"""Times, spans and quoted input as strings. Every command imports this, so it imports nothing of ours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import overload

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def quote(text: str, longest: int = 40) -> str:
    """A user's string in an error message: shortened, and with everything unprintable escaped."""
    cut = text if len(text) <= longest else text[:longest] + "…"
    if cut.isprintable():
        return cut
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in cut)


@overload
def time_text(moment: datetime) -> str: ...
@overload
def time_text(moment: None) -> None: ...
def time_text(moment: datetime | None) -> str | None:
    """A time for JSON: UTC with `Z`, with microseconds only if there are any."""
    if moment is None:
        return None
    # The driver returns ±infinity as the ends of the calendar, without a zone.
    utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return utc.isoformat().replace("+00:00", "Z")


def utc_text(moment: datetime) -> str:
    """A time for a sentence: UTC to the second, with milliseconds only if it has a fraction of a second."""
    utc = moment.astimezone(UTC).replace(tzinfo=None)
    return utc.isoformat(" ", "milliseconds" if utc.microsecond else "seconds") + "Z"


def rough_span(seconds: float) -> str:
    """A span for a table: rounded, in one unit."""
    if seconds < 0:
        return "-" + rough_span(-seconds)
    if seconds < 0.00995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, size, limit in (("s", 1, 100), ("min", 60, 6000), ("h", 3600, 48 * 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def exact_span(span: timedelta) -> str:
    """A span for a sentence: in its two largest units."""
    seconds = max(0.0, span.total_seconds())
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    left = round(seconds)
    parts: list[str] = []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(filter(None, parts))
