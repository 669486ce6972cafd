"""Where a claim begins in each lane, when beginning at the beginning is slow. `Walk` is for workers of some tenants.

A run that was taken is deleted, but its index entry stays before the head of its lane until vacuum may remove it, and
while somebody's report holds a snapshot, vacuum may not. Every claim then walks over all that was taken since: 25 ms
with 100,000 of them, for every worker and every claim. So a claimer remembers up to where it has found a lane empty and
begins there, as long as it is slow; and looks at everything every now and then, because a run whose transaction took
long to commit appears below the floor. Where one such run is there may be many: while a look at everything brings as
many of them as it may take, the next look is at everything too.

Slow is what the database itself took: a worker far from it waits long for each answer and is not slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from duly.model import Claim
from duly.store.runs import Lanes

# A claim that takes longer than this is slow; so much more for each run that it brought.
SLOW_SECONDS = 0.005
SLOW_SECONDS_A_RUN = 50e-6
# Then the whole lanes are looked at only so often: at most a hundredth of the time goes into it.
LEAST_PAUSE, LONGEST_PAUSE = 1.0, 10.0
# Two statements that run at once commit in any order: what has just been found empty may not be.
SLACK = timedelta(seconds=2)
_NEVER = datetime.min.replace(tzinfo=UTC)


class Floors:
    def __init__(self) -> None:
        self._floors: dict[tuple[str, int], datetime] = {}
        self._look_again_at = 0.0
        self._whole = True

    def of(self, lanes: Lanes, now: float) -> list[datetime | None]:
        """Where to begin in each of these lanes, at `now` (monotonic)."""
        self._whole = now >= self._look_again_at
        if self._whole:
            return [None] * len(lanes[0])
        return [self._floors.get(lane) for lane in zip(*lanes, strict=True)]

    def learn(self, lanes: Lanes, claim: Claim, now: float, *, full: bool) -> None:
        """What a claim over these lanes found. `full`: it brought as many runs as it might."""
        names = list(zip(*lanes, strict=True))
        if self._whole:
            slow = claim.took > SLOW_SECONDS + SLOW_SECONDS_A_RUN * len(claim.runs)
            # It ended below the floor: whoever begins at the floor does not see what else lies there.
            more_below = full and claim.emptied_to < self._floors.get(names[claim.emptied_lanes - 1], _NEVER)
            pause = min(LONGEST_PAUSE, max(LEAST_PAUSE, 100 * claim.took))
            self._look_again_at = now + pause if slow and not more_below else 0.0
        floor = claim.emptied_to - SLACK
        for lane in names[: claim.emptied_lanes]:
            # Not below what is known: a lane that was looked at from its floor on is empty from there, not before.
            self._floors[lane] = max(floor, self._floors.get(lane, floor))


# How much of each lane a claim for some tenants looks at: more while it finds nothing.
SHORTEST_STRETCH, LONGEST_STRETCH = 1_000, 16_000
# After a walk over everything that was slow, only what is new is looked at for a while: a thirtieth of the time goes
# into walks.
LONGEST_REST = 60.0


class Walk:
    """Where the claims of a worker that serves some tenants begin, and how far each looks.

    Others' runs may lie before the tenants' own, a million of them, and nobody but other workers takes those away. So
    such a worker goes over a lane stretch by stretch, once, and then stays at its end, where new runs appear. What
    appears before it (a transaction that took long to commit, an occurrence that was released late) is found by the
    next walk over everything. Where that is quick, every claim is one.
    """

    def __init__(self) -> None:
        self._floors: dict[tuple[str, int], datetime] = {}
        self._walking = False
        self._took = 0.0
        self._rests_until = 0.0
        self._left: Sequence[str] = ()
        self.stretch = SHORTEST_STRETCH

    def of(self, lanes: Lanes, now: float, without: Sequence[str] | None) -> list[datetime | None]:
        """Where to begin in each of these lanes, at `now` (monotonic)."""
        left = sorted(without or ())
        if left != self._left or (not self._walking and now >= self._rests_until):
            # From the beginning; also because what was left to others no longer is.
            self._left, self._walking, self._took = left, True, 0.0
            self._floors.clear()
        return [self._floors.get(lane) for lane in zip(*lanes, strict=True)]

    def learn(self, lanes: Lanes, claim: Claim, now: float, *, full: bool) -> bool:
        """What a claim found; whether there is more to look at right away."""
        self._took += claim.took
        more = full
        for number, (lane, end) in enumerate(zip(zip(*lanes, strict=True), claim.ends, strict=True), 1):
            if full and number == claim.emptied_lanes:
                self._floors[lane] = claim.emptied_to
                break  # it did not come to the others
            if end is None:
                self._floors[lane] = max(claim.now - SLACK, self._floors.get(lane, _NEVER))
            else:
                self._floors[lane] = end + timedelta(microseconds=1)
                more = True
        self.stretch = SHORTEST_STRETCH if claim.runs or not more else min(LONGEST_STRETCH, 2 * self.stretch)
        if not more and self._walking:
            self._walking = False
            rest = 0.0 if self._took <= SLOW_SECONDS else min(LONGEST_REST, max(LEAST_PAUSE, 30 * self._took))
            self._rests_until = now + rest
        return more
