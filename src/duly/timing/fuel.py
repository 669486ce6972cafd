"""What one question about time may cost: a tank of fuel that every step of the answer burns from.

A rule is a stranger's text, and there are rules whose next occurrence is thousands of years of searching away. So a
question (a preview, a plan, a list) has one tank, and whatever is asked on the way to its answer burns from that one:
jumps of a search, hops over gaps, places of a period, years of a zone, occurrences of a list. How much a question burns
does not depend on the machine. A unit is about a microsecond and a half, so that no question costs more than a few
milliseconds; when the tank is empty the question ends in `TooCostly`.
"""

from __future__ import annotations

from contextvars import ContextVar

from duly.errors import TooCostly

TANK = 4_000
#: What an occurrence in a list costs where the rule is an ordinary one, with room.
EACH = 8


class Fuel:
    """How much a question may still burn."""

    __slots__ = ("left",)

    def __init__(self, units: int | None = None) -> None:
        self.left = TANK if units is None else units

    @classmethod
    def for_list(cls, count: int) -> Fuel:
        """For a list of so many occurrences, which is one question."""
        return cls(max(TANK, EACH * count))

    def burn(self, units: int = 1) -> None:
        self.left -= units
        if self.left < 0:
            raise TooCostly

    def part(self) -> Fuel:
        """A tank for one question among many that have this one together; `used` takes off what it burnt."""
        return Fuel(min(TANK, self.left))

    def used(self, part: Fuel, given: int) -> None:
        self.left -= given - part.left


#: The tank of whoever asks for something that is remembered from one question to the next, and has to be worked out
#: now; None where that is a question of its own.
LENT: ContextVar[Fuel | None] = ContextVar("duly_fuel", default=None)
