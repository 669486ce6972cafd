"""Tests that fault plans are seeded, overlap, end in time, and contain only faults that a world allows.

They need no world.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from torture.faults import FAULTS, Planned, Sort, plan
from torture.test_world import AS_PROCESSES, IN_NAMESPACES, make_world

SORT = Sort(
    schedulers=("scheduler-1", "scheduler-2", "scheduler-3"), workers=("worker-1", "worker-2", "worker-3"),
    api=("api-1",), namespaces=True, standby=True, registry=True, small_disk=True, clocks=True, leader_lease=2,
    worker_lease=4,
)  # fmt: skip


def _spelled(planned: Sequence[Planned]) -> list[tuple[float, str, str, int, float]]:
    return [(each.start, each.fault.kind, each.fault.target, each.fault.seed, each.duration) for each in planned]


def test_a_seed_gives_one_plan_and_another_seed_another() -> None:
    assert _spelled(plan(Random(7), 60, world=SORT)) == _spelled(plan(Random(7), 60, world=SORT))
    assert _spelled(plan(Random(7), 60, world=SORT)) != _spelled(plan(Random(8), 60, world=SORT))


def test_plans_overlap_but_not_on_one_thing_and_end_in_time() -> None:
    kinds, overlaps = set(), 0
    for seed in range(60):
        planned = plan(Random(seed), 100, world=SORT, rate=1)
        kinds |= {each.fault.kind for each in planned}
        for number, each in enumerate(planned):
            assert each.start >= 0
            assert each.start + each.duration <= 100.001
            for other in planned[number + 1 :]:
                if other.start < each.start + each.duration:
                    overlaps += 1
                    assert not each.fault.touches(SORT) & other.fault.touches(SORT)
    assert kinds == set(FAULTS)
    assert overlaps > 1000


def test_pauses_last_from_half_a_lease_to_ten() -> None:
    lasting = [
        FAULTS["pause"].duration(Random(seed), SORT, target) / SORT.lease(target)
        for seed in range(500)
        for target in ("scheduler-1", "worker-1")
    ]
    assert 0.5 <= min(lasting) < 0.6
    assert 9 < max(lasting) <= 10.001


def test_only_what_a_world_allows_is_planned() -> None:
    poor = Sort(**{**SORT.__dict__, "namespaces": False, "standby": False, "registry": False, "small_disk": False})
    kinds = {each.fault.kind for seed in range(60) for each in plan(Random(seed), 100, world=poor, rate=1)}
    assert kinds.isdisjoint({"promotion", "failover", "disk-full", "registry-kill", "unplug", "database-partition"})
    assert "partition" in kinds


def test_kinds_are_chosen_by_name_or_first_word_and_an_unknown_one_is_refused() -> None:
    kinds = {each.fault.kind for each in plan(Random(1), 500, world=SORT, rate=2, kinds=["kill"])}
    assert kinds == {"kill", "kill-many", "kill-postmaster", "kill-backend"}
    with pytest.raises(ValueError, match=r"no fault 'explode'; there are .*kill"):
        plan(Random(1), 60, world=SORT, kinds=["explode"])


def test_every_kind_of_fault_is_tried() -> None:
    assert {kind for kind, *_ in IN_NAMESPACES + AS_PROCESSES} == set(FAULTS)


def test_a_world_of_an_unknown_sort_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"coordinator is 'consul': use one of postgres"):
        make_world(tmp_path, coordinator="consul")
