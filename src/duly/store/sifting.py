"""A bad row hurts itself only: a statement of many rows that failed is tried in halves, until it is clear which.

Data that are refused (`DataRefused`) are tried in halves at once: who sends them knows what to do with the one. What
else the server may say because of one row (`may_be_one_rows`) may pass: the batch is sent again as it is, and only
after some times in a row in halves. The one is set apart without blame, and tried again by itself with growing pauses.

When a number of tries in a row are of no use, the whole is at fault and not a row: what is said of the store must not
become a storm of statements.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

from duly.errors import DulyError
from duly.store.pool import may_be_one_rows

#: So often a batch is sent as it is before it is sent in halves.
TRIES = 3
# It takes eleven to find one in a batch of 2,000.
_FRUITLESS = 20
# Between two tries of what was set apart, in seconds. The more there are the longer: each is a statement of its own.
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0
_PAUSE_EACH = 0.02
# So many of them at once; others wait meanwhile.
_FEW = 20

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class Sifting(Generic[T]):
    """Rows on their way into the store. What is said of those that come through is up to `write`."""

    def __init__(self, rows: Sequence[T], *, known: Sequence[T] = (), split: bool = True) -> None:
        """`known` are tried one by one, after the others. Without `split` the others are tried as they are, once."""
        self._whole = rows
        self._split = split
        self._waiting: list[Sequence[T]] = [[one] for one in reversed(known)] + ([rows] if rows else [])
        #: Those that drew an error when they were alone.
        self.alone: list[tuple[T, DulyError]] = []
        #: Whether anything came through.
        self.fruitful = False

    @property
    def left(self) -> list[T]:
        """Those that it did not come to."""
        return [one for rows in reversed(self._waiting) for one in rows]

    async def through(self, write: Callable[[Sequence[T]], Awaitable[None]]) -> None:
        """Raises what is not a row's, and what is the whole's."""
        fruitless = 0
        while self._waiting:
            rows = self._waiting[-1]
            try:
                await write(rows)
            except DulyError as error:
                if not may_be_one_rows(error) or (rows is self._whole and not self._split):
                    raise
                fruitless += 1
                if len(rows) == 1:
                    self.alone.append((rows[0], error))
                elif fruitless >= _FRUITLESS:
                    if not self.fruitful:
                        self._waiting += [[one] for one, _ in self.alone]
                        self.alone = []
                    raise
                self._waiting.pop()
                if len(rows) > 1:
                    half = len(rows) // 2
                    self._waiting += [rows[half:], rows[:half]]
            else:
                fruitless, self.fruitful = 0, True
                self._waiting.pop()


async def without_the_bad(
    rows: Sequence[T], write: Callable[[Sequence[T]], Awaitable[None]]
) -> list[tuple[T, DulyError]]:
    """Write those that can be written. Returns the others, each with what the server said."""
    sifting = Sifting(rows)
    try:
        await sifting.through(write)
    except DulyError as error:
        if not may_be_one_rows(error):
            raise
        return sifting.alone + [(one, error) for one in sifting.left]
    return sifting.alone


@dataclass(slots=True)
class _One(Generic[V]):
    what: V
    times: int = 0
    pause: float = 0.0
    at: float = inf
    """When to try it again; while it is being tried, never."""


class Apart(Generic[K, V]):
    """What a service has set apart, by key, and how often in a row its batches have failed. Times are in seconds."""

    def __init__(self) -> None:
        self._known: dict[K, _One[V]] = {}
        self._failed = 0

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, key: object) -> bool:
        return key in self._known

    @property
    def waiting(self) -> Iterator[V]:
        """Those that are not being tried."""
        return (one.what for one in self._known.values() if one.at < inf)

    @property
    def splitting(self) -> bool:
        """Whether a batch that fails now is to be tried in halves."""
        return self._failed >= TRIES - 1

    def failed(self, error: BaseException, *, fruitful: bool) -> None:
        if isinstance(error, DulyError) and may_be_one_rows(error):
            # To look for the one was of no use? Then not each time.
            self._failed = 0 if self.splitting and not fruitful else self._failed + 1

    def passed(self) -> None:
        self._failed = 0

    def put(self, key: K, what: V, now: float) -> bool:
        """Set it apart, once more or for the first time: whether it is new here."""
        one = self._known.setdefault(key, _One(what))
        longest = max(LONGEST_PAUSE, _PAUSE_EACH * len(self._known))
        one.pause = min(longest, FIRST_PAUSE * 2.0 ** min(one.times, 20))
        one.what, one.at, one.times = what, now + one.pause, one.times + 1
        return one.times == 1

    def take(self, now: float) -> list[tuple[K, V]]:
        """A few of those whose pause is over, or who wait since before the clock was set back. They stay known."""
        taken: list[tuple[K, V]] = []
        for key, one in self._known.items():
            if len(taken) < _FEW and one.at < inf and not now < one.at <= now + one.pause:
                one.at = inf
                taken.append((key, one.what))
        return taken

    def seconds_to_next(self, now: float) -> float | None:
        soonest = min((one.at for one in self._known.values()), default=inf)
        return max(0.0, soonest - now) if soonest < inf else None

    def forget(self, key: K) -> None:
        self._known.pop(key, None)

    def keep(self, wanted: Callable[[V], bool]) -> None:
        self._known = {key: one for key, one in self._known.items() if wanted(one.what)}
