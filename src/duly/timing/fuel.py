"""A limit on the work that one question about time may cost: fuel, which every step of the search burns.

A schedule is untrusted text, and some rules need a search through thousands of years to find their next occurrence. So
each question (a preview, a plan, a list) gets one `Fuel`, and all the steps to its answer burn from it: jumps of a
search, hops over gaps, positions within a period, years of a zone, occurrences of a list. How much a question burns
does not depend on the machine. A unit takes about 1.5 µs, so no question takes longer than a few milliseconds; when its
fuel is used up, the question ends in `TooCostly`.
"""

from __future__ import annotations

from contextvars import ContextVar

from duly.errors import TooCostly

#: Units of fuel for one question.
MAX_FUEL = 4_000
#: Units of fuel for each occurrence of a list: what an ordinary rule needs, with room to spare.
EACH = 8


class Fuel:
    """The units of work that one question may still burn."""

    __slots__ = ("left",)

    def __init__(self, units: int | None = None) -> None:
        self.left = MAX_FUEL if units is None else units

    @classmethod
    def for_list(cls, count: int) -> Fuel:
        """Fuel for a list of `count` occurrences, which is one question."""
        return cls(max(MAX_FUEL, EACH * count))

    def burn(self, units: int = 1) -> None:
        self.left -= units
        if self.left < 0:
            raise TooCostly

    def part(self) -> Fuel:
        """Fuel for one of several questions that share this fuel; `used` then subtracts what it burnt."""
        return Fuel(min(MAX_FUEL, self.left))

    def used(self, part: Fuel, given: int) -> None:
        self.left -= given - part.left


#: The fuel of the current question, for cached functions that cannot take it as an argument: it would become part of
#: the cache key. None if the computation is a question of its own.
LENT: ContextVar[Fuel | None] = ContextVar("duly_fuel", default=None)
