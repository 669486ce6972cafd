"""Floors: the position in each lane where a claim begins, when beginning at the lane's start is slow.

A claimed run is deleted, but its index entry stays before the head of its lane until vacuum may remove it, and while a
report holds a snapshot, vacuum may not. Every claim then walks over all entries deleted since: 25 ms for 100,000 of
them, for every worker and every claim. So a claimer remembers up to where it found a lane empty and begins there, as
long as claims are slow. Now and then it looks at whole lanes, because a run whose transaction took long to commit
appears below the floor. One such run may be one of many: while a look at whole lanes brings as many of them as it may
take, the next claim looks at whole lanes too.

Slow refers to the time that the database itself took: a worker far from it waits long for each answer and is not slow.

`Walk` does the same for workers that take only some runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from duly.model import Claim
from duly.store.runs import Lanes

# A claim is slow if it takes longer than 5 ms plus 50 µs per run that it brought.
SLOW_SECONDS = 0.005
SLOW_SECONDS_PER_RUN = 50e-6
# Pause between looks at whole slow lanes: 100 times what the last one took, within these bounds, so that at most a
# hundredth of the time goes into them.
MIN_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 10.0
# Two statements that run at once commit in any order: a lane found empty up to now may still get a slightly older run.
SLACK = timedelta(seconds=2)
_NEVER = datetime.min.replace(tzinfo=UTC)


class Floors:
    """The floors of one claimer's lanes."""

    def __init__(self) -> None:
        self._floors: dict[tuple[str, int], datetime] = {}
        self._look_again_at = 0.0
        self._whole = True

    def of(self, lanes: Lanes, now: float) -> list[datetime | None]:
        """The position to begin at in each of these lanes, at `now` (monotonic); None: its start."""
        self._whole = now >= self._look_again_at
        if self._whole:
            return [None] * len(lanes[0])
        return [self._floors.get(lane) for lane in zip(*lanes, strict=True)]

    def learn(self, lanes: Lanes, claim: Claim, now: float, *, full: bool) -> None:
        """Raises floors by the answer of a claim over these lanes. `full`: it brought as many runs as it might."""
        names = list(zip(*lanes, strict=True))
        if self._whole:
            slow = claim.took > SLOW_SECONDS + SLOW_SECONDS_PER_RUN * len(claim.runs)
            # The claim stopped below the floor: a claim that begins at the floor would miss the runs between.
            more_below = full and claim.emptied_to < self._floors.get(names[claim.emptied_lanes - 1], _NEVER)
            pause = min(MAX_PAUSE_SECONDS, max(MIN_PAUSE_SECONDS, 100 * claim.took))
            self._look_again_at = now + pause if slow and not more_below else 0.0
        floor = claim.emptied_to - SLACK
        for lane in names[: claim.emptied_lanes]:
            # Never lowered: a lane that was looked at from its floor on says nothing about the runs below it.
            self._floors[lane] = max(floor, self._floors.get(lane, floor))


# Runs of each lane that one claim for some runs looks at; doubled while claims find nothing.
MIN_STRETCH = 1_000
MAX_STRETCH = 16_000
# After a slow walk over whole lanes, claims look only at their ends for 30 times what it took, at most this long: a
# thirtieth of the time goes into walks.
MAX_REST_SECONDS = 60.0


class Walk:
    """The position where each claim of a worker begins that takes only some runs, and how far it looks.

    A million runs of other tenants, or of tasks that only other workers have, may lie before the worker's own, and only
    other workers take those away. So such a worker walks over a lane once, stretch by stretch, and then stays at its
    end, where new runs appear. Runs that appear before it (their transaction took long to commit, or the occurrence was
    released late) are found by the next walk over whole lanes. Where a walk is quick, every claim is one.
    """

    def __init__(self) -> None:
        self._floors: dict[tuple[str, int], datetime] = {}
        self._walking = False
        self._walk_seconds = 0.0
        self._rest_until = 0.0
        self._left_to_others: Sequence[str] = ()
        self.stretch = MIN_STRETCH

    def of(self, lanes: Lanes, now: float, without: Sequence[str] | None) -> list[datetime | None]:
        """The position to begin at in each of these lanes, at `now` (monotonic); None: its start."""
        left = sorted(without or ())
        if left != self._left_to_others or (not self._walking and now >= self._rest_until):
            # Begin at the start, also when tasks that were left to other workers are taken again.
            self._left_to_others, self._walking, self._walk_seconds = left, True, 0.0
            self._floors.clear()
        return [self._floors.get(lane) for lane in zip(*lanes, strict=True)]

    def learn(self, lanes: Lanes, claim: Claim, now: float, *, full: bool) -> bool:
        """Moves the floors by a claim's answer. Returns whether there is more to look at right away."""
        self._walk_seconds += claim.took
        more = full
        for number, (lane, end) in enumerate(zip(zip(*lanes, strict=True), claim.ends, strict=True), 1):
            if full and number == claim.emptied_lanes:
                self._floors[lane] = claim.emptied_to
                break  # the claim did not reach the other lanes
            if end is None:
                self._floors[lane] = max(claim.now - SLACK, self._floors.get(lane, _NEVER))
            else:
                self._floors[lane] = end + timedelta(microseconds=1)
                more = True
        self.stretch = MIN_STRETCH if claim.runs or not more else min(MAX_STRETCH, 2 * self.stretch)
        if not more and self._walking:
            self._walking = False
            rest = (
                0.0
                if self._walk_seconds <= SLOW_SECONDS
                else min(MAX_REST_SECONDS, max(MIN_PAUSE_SECONDS, 30 * self._walk_seconds))
            )
            self._rest_until = now + rest
        return more
