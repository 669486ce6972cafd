"""Ids: opaque, unique without asking anyone, and sortable by creation."""

from __future__ import annotations

import os
from uuid import UUID


def new_job_ids(count: int, now_us: int) -> list[UUID]:
    """Version-7 UUIDs in ascending order: milliseconds, then a counter within this call, then random bits.

    Made by the submitter, so that sending the same submit again after a lost answer finds its own rows.
    """
    noise = os.urandom(8 * count)
    ms = now_us // 1000
    ids = []
    for n in range(count):
        # 12 bits of counter per millisecond; a larger batch borrows from the milliseconds after it.
        head = ((ms + (n >> 12)) << 16) | 0x7000 | (n & 0xFFF)
        tail = (int.from_bytes(noise[8 * n : 8 * n + 8], "big") & 0x3FFF_FFFF_FFFF_FFFF) | 0x8000_0000_0000_0000
        ids.append(UUID(int=(head << 64) | tail))
    return ids


def shard_of(job_id: UUID, shard_count: int) -> int:
    """The same sum as the SQL function `duly.shard_of`."""
    return (job_id.int & 0xFFFF) % shard_count
