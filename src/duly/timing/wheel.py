"""The timing wheel: finds the jobs that are due next among millions, in about 30 bytes each.

Two levels per shard. The outer ring holds the near future in slots of a few seconds; a slot is two growing arrays (ids
and due times, 24 bytes an entry) in no order. When a slot's time comes it is sorted once into the inner level, a short
list in order of due time, from whose front everything due is cut. So loading is appending, a tick with nothing due is
one comparison, and only the few seconds at hand are ever Python objects.

The shards' slots begin at different moments. If they began together, all shards would sort in the same tick, and that
tick would fire late.

The wheel may be wrong in any way without harm: the store is the truth, and the fire statement checks it again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort_right
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter, le
from struct import iter_unpack

Entry = tuple[bytes, int]

_ID_BYTES = 16
_SLOTS = 256
_due = itemgetter(1)


def _ids(joined: bytes | bytearray) -> Iterator[bytes]:
    return map(itemgetter(0), iter_unpack(f"{_ID_BYTES}s", joined))


class Wheel:
    """Entries (job id, due time in microseconds) by shard. Not thread-safe.

    `horizon_us` is how far ahead the loader fills the wheel, and sets the width of a slot, in whole ticks. Entries past
    the horizon are kept too.
    """

    __slots__ = ("_earliest", "_shards", "_width")

    def __init__(self, *, tick_us: int = 1000, horizon_us: int = 600_000_000) -> None:
        if tick_us < 1 or horizon_us < tick_us:
            raise ValueError("a wheel needs a tick of at least 1 µs and a horizon not shorter than it")
        self._width = max(1, -(-horizon_us // (_SLOTS * tick_us))) * tick_us
        self._shards: dict[int, _Ring] = {}
        self._earliest: int | None = None

    def __len__(self) -> int:
        return sum(ring.count for ring in self._shards.values())

    def load(self, shard: int, job_ids: bytes, dues_us: array[int] | Sequence[int]) -> int:
        """Adds many entries: `job_ids` has 16 bytes for each of `dues_us`. Returns the number of new ones.

        An entry that is already in the wheel is not added again, so the same stretch of time may be read repeatedly.
        Fastest in order of due time.
        """
        if len(job_ids) != _ID_BYTES * len(dues_us):
            raise ValueError(f"{len(job_ids)} bytes of ids for {len(dues_us)} entries of {_ID_BYTES} bytes")
        if not dues_us:
            return 0
        dues = dues_us if isinstance(dues_us, array) else array("q", dues_us)
        if not all(map(le, dues, islice(dues, 1, None))):
            entries = sorted(zip(_ids(job_ids), dues, strict=True), key=_due)
            job_ids, dues = b"".join(raw for raw, _ in entries), array("q", [due for _, due in entries])
        ring = self._ring(shard)
        new = ring.load(job_ids, dues)
        self._noticed(ring.earliest)
        return new

    def add(self, shard: int, job_id: bytes, due_us: int) -> None:
        """Adds one entry. Added twice, it is returned twice; already due, it is returned by the next `advance`."""
        if len(job_id) != _ID_BYTES:
            raise ValueError(f"an id of {len(job_id)} bytes, use {_ID_BYTES}")
        self._ring(shard).add(bytes(job_id), due_us)
        self._noticed(due_us)

    def drop_shard(self, shard: int) -> None:
        """Removes all entries of a shard: a lost or a new term is rebuilt, never merged."""
        if self._shards.pop(shard, None) is not None:
            self._find_earliest()

    def advance(self, now_us: int) -> list[tuple[int, list[Entry]]]:
        """Removes and returns all entries due at `now_us` or before: per shard, in order of due time."""
        if self._earliest is None or now_us < self._earliest:
            return []
        due = []
        for shard, ring in self._shards.items():
            if ring.earliest is not None and ring.earliest <= now_us:
                entries = ring.advance(now_us)
                if entries:
                    due.append((shard, entries))
        self._find_earliest()
        return due

    def next_due_us(self) -> int | None:
        """The due time of the earliest entry; None if the wheel is empty."""
        return self._earliest

    def crowds(self, until_us: int) -> list[tuple[int, int]]:
        """(time, number of entries due within a slot's width of it) for each slot up to `until_us`, ordered by time."""
        return sorted(crowd for ring in self._shards.values() for crowd in ring.crowds(until_us))

    def _ring(self, shard: int) -> _Ring:
        ring = self._shards.get(shard)
        if ring is None:
            # Consecutive shards land far apart: the golden ratio spreads any number of them evenly.
            phase = int(shard * 0.6180339887498949 % 1 * self._width)
            ring = self._shards[shard] = _Ring(self._width, phase)
        return ring

    def _noticed(self, due: int | None) -> None:
        if due is not None and (self._earliest is None or due < self._earliest):
            self._earliest = due

    def _find_earliest(self) -> None:
        self._earliest = min(
            (ring.earliest for ring in self._shards.values() if ring.earliest is not None), default=None
        )


class _Slot:
    """The entries of one shard for a few seconds, unordered."""

    __slots__ = ("dues", "earliest", "ids")

    def __init__(self) -> None:
        self.ids = bytearray()
        self.dues = array("q")
        self.earliest = 1 << 62


class _Ring:
    """One shard's slots, and in `near` the entries of the slots that are due, ordered."""

    __slots__ = ("_phase", "_slots", "_width", "count", "current", "earliest", "near")

    def __init__(self, width: int, phase: int) -> None:
        self._width = width
        self._phase = phase
        self._slots: dict[int, _Slot] = {}
        self.near: list[Entry] = []
        self.current: int | None = None  # slots up to this one have moved to `near`
        self.count = 0
        self.earliest: int | None = None

    def load(self, job_ids: bytes, dues: array[int]) -> int:
        """Adds entries in order of due time: those of one slot are adjacent, and mostly appended in one piece."""
        before = self.count
        start, end = 0, len(dues)
        while start < end:
            number = (dues[start] + self._phase) // self._width
            ripe = self.current is not None and number <= self.current
            # The end of the slot; for slots that have moved to `near`, the end of the last of them.
            limit = ((self.current if ripe and self.current is not None else number) + 1) * self._width - self._phase
            stop = bisect_left(dues, limit, start)
            piece = job_ids[_ID_BYTES * start : _ID_BYTES * stop], dues[start:stop]
            if ripe:
                self._load_near(*piece)
            else:
                self._load_slot(number, *piece)
            start = stop
        self._find_earliest()
        return self.count - before

    def _load_near(self, job_ids: bytes, dues: array[int]) -> None:
        known = set(self.near)
        new = [entry for entry in zip(_ids(job_ids), dues, strict=True) if entry not in known]
        if new:
            self.near += new
            self.near.sort(key=_due)
            self.count += len(new)

    def _load_slot(self, number: int, job_ids: bytes, dues: array[int]) -> None:
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = _Slot()
        elif slot.dues:
            known = set(zip(_ids(slot.ids), slot.dues, strict=True))
            new = [entry for entry in zip(_ids(job_ids), dues, strict=True) if entry not in known]
            if not new:
                return
            job_ids, dues = b"".join(raw for raw, _ in new), array("q", [due for _, due in new])
        slot.ids += job_ids
        slot.dues.extend(dues)
        slot.earliest = min(slot.earliest, dues[0])
        self.count += len(dues)

    def add(self, job_id: bytes, due: int) -> None:
        number = (due + self._phase) // self._width
        if self.current is not None and number <= self.current:
            insort_right(self.near, (job_id, due), key=_due)
        else:
            slot = self._slots.get(number)
            if slot is None:
                slot = self._slots[number] = _Slot()
            slot.ids += job_id
            slot.dues.append(due)
            slot.earliest = min(slot.earliest, due)
        self.count += 1
        if self.earliest is None or due < self.earliest:
            self.earliest = due

    def advance(self, now: int) -> list[Entry]:
        number = (now + self._phase) // self._width
        ripe = [slot for slot in self._slots if slot <= number]
        if ripe:
            for one in ripe:
                slot = self._slots.pop(one)
                self.near += zip(_ids(slot.ids), slot.dues, strict=True)
            self.near.sort(key=_due)
            self.current = max(number, self.current if self.current is not None else number)
        end = bisect_right(self.near, now, key=_due)
        entries = self.near[:end]
        del self.near[:end]
        self.count -= len(entries)
        self._find_earliest()
        return entries

    def crowds(self, until: int) -> Iterator[tuple[int, int]]:
        if self.near:
            yield self.near[0][1], len(self.near)
        for slot in self._slots.values():
            if slot.earliest <= until:
                yield slot.earliest, len(slot.dues)

    def _find_earliest(self) -> None:
        near = self.near[0][1] if self.near else None
        ahead = self._slots[min(self._slots)].earliest if self._slots else None
        self.earliest = near if ahead is None else ahead if near is None else min(near, ahead)
