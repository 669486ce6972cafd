"""Where a claim begins in each lane, when beginning at the beginning is slow.

A run that was taken is deleted, but its index entry stays before the head of its lane until vacuum may remove it, and
while somebody's report holds a snapshot, vacuum may not. Every claim then walks over all that was taken since: 25 ms
with 100,000 of them, for every worker and every claim. So a claimer remembers up to where it has found a lane empty and
begins there, as long as it is slow; and looks at everything every now and then, because a run whose transaction took
long to commit appears below the floor. Where one such run is there may be many: while a look at everything brings as
many of them as it may take, the next look is at everything too.

Slow is what the database itself took: a worker far from it waits long for each answer and is not slow.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from duly.store.runs import Claim, Lanes

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
