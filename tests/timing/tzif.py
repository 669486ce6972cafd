"""Makes zone files (RFC 8536), so that two versions of one zone can differ as a test needs."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import datetime, timedelta


def zone_file(first: timedelta, changes: Sequence[tuple[datetime, timedelta]] = ()) -> bytes:
    """A zone that begins with the offset `first` and has another offset from each change on."""
    offsets = sorted({first, *(offset for _, offset in changes)})
    kinds = b"".join(struct.pack(">lbB", round(one.total_seconds()), 0, 0) for one in [first, *offsets])
    names = b"LOC\0"
    times = b"".join(struct.pack(">q", round(at.timestamp())) for at, _ in changes)
    places = bytes(1 + offsets.index(offset) for _, offset in changes)
    old = b"TZif2" + bytes(15) + struct.pack(">6l", 0, 0, 0, 0, 1, len(names)) + struct.pack(">lbB", 0, 0, 0) + names
    head = b"TZif2" + bytes(15) + struct.pack(">6l", 0, 0, 0, len(changes), 1 + len(offsets), len(names))
    last = changes[-1][1] if changes else first
    return old + head + times + places + kinds + names + f"\n<LOC>{_posix(last)}\n".encode()


def _posix(offset: timedelta) -> str:
    """The offset in POSIX notation, where hours west of Greenwich are positive."""
    minutes = -round(offset.total_seconds() / 60)
    return f"{'-' if minutes < 0 else ''}{abs(minutes) // 60}:{abs(minutes) % 60:02d}"
