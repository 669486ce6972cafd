"""Job ids: opaque, unique without coordination, and sortable by creation."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable
from uuid import UUID

# The driver's UUID class: a subclass of Python's that is created, compared and written in a third of the time.
from asyncpg.pgproto.pgproto import UUID as _UUID

# Milliseconds by which a newly measured clock may be behind; beyond that it is another clock.
_BEHIND_MS = 60_000
_eight = struct.Struct(">Q")
_sixteen = struct.Struct(">QQ").pack
_uuid: Callable[[bytes], UUID] = _UUID
_lock = threading.Lock()
_next = 0


def new_job_ids(count: int, now_us: int) -> list[UUID]:
    """Version-7 UUIDs: milliseconds, then a counter, then random bits. Ascending within a process, call after call.

    The submitter makes them, so that the same submit, sent again after a lost answer, finds its own rows.
    """
    noise = os.urandom(8 * count)
    # Milliseconds with 12 bits of counter; more ids in one millisecond borrow from the next.
    first = _reserve((now_us // 1000) << 12, count)
    ids = []
    for moment, (random,) in zip(range(first, first + count), _eight.iter_unpack(noise), strict=True):
        head = ((moment >> 12) << 16) | 0x7000 | (moment & 0xFFF)
        ids.append(_uuid(_sixteen(head, (random & 0x3FFF_FFFF_FFFF_FFFF) | 0x8000_0000_0000_0000)))
    return ids


def _reserve(moment: int, count: int) -> int:
    global _next
    with _lock:
        first = _next if 0 < _next - moment < (_BEHIND_MS << 12) else moment
        _next = first + count
    return first


def shard_of(job_id: UUID, shard_count: int) -> int:
    """The same sum as the SQL function `duly.shard_of`."""
    return (job_id.int & 0xFFFF) % shard_count
