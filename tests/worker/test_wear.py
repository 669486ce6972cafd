"""When a worker process is worn out, and how it claims when it is too large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from duly.config import Settings, load_settings
from duly.errors import ConfigError
from duly.sizes import read_size, size_text
from duly.worker import wear
from duly.worker.wear import Limits, Wear, Worn, resident_bytes
from harness.waiting import eventually


class Scales:
    """The memory that the process is told to have."""

    def __init__(self) -> None:
        self.bytes: int | None = 100
        self.looks = 0

    def __call__(self) -> int | None:
        self.looks += 1
        return self.bytes


@pytest.fixture
def scales(monkeypatch: pytest.MonkeyPatch) -> Scales:
    scales = Scales()
    monkeypatch.setattr(wear, "resident_bytes", scales)
    monkeypatch.setattr(wear, "WEIGH_SECONDS", 0.005)
    monkeypatch.setattr(wear, "YOUNG_SECONDS", 0.05)
    return scales


def worn_by(limits: Limits, busy: Callable[[], bool] = lambda: False) -> tuple[Wear, list[Worn]]:
    told: list[Worn] = []
    worn = Wear(limits, told.append)
    worn.start(busy)
    return worn, told


async def test_a_process_is_worn_after_its_runs_and_up_to_a_tenth_more_and_says_so_once(scales: Scales) -> None:
    ends = set()
    for _ in range(50):
        worn, told = worn_by(Limits(runs=100))
        worn._began -= 10
        count = 0
        while not told:
            worn.claimed(1)
            count += 1
        ends.add(count)
        for _ in range(100):
            worn.claimed(1)
        assert [(one.why, one.runs) for one in told] == [("runs", count)]
    assert min(ends) >= 100
    assert max(ends) <= 110
    assert len(ends) > 3  # several processes of one worker do not end together


async def test_a_young_process_is_not_replaced_for_its_runs(scales: Scales) -> None:
    worn, told = worn_by(Limits(runs=1))
    worn.claimed(5)
    assert told == []
    await eventually(lambda: len(told) == 1)
    assert told[0].why == "runs"


async def test_memory_is_looked_at_only_while_runs_are_under_way(scales: Scales) -> None:
    working = True
    worn, told = worn_by(Limits(memory=1000), lambda: working)
    await asyncio.sleep(0.03)
    assert scales.looks == 1  # its size before the first run
    worn.claimed(1)
    await eventually(lambda: scales.looks > 5)
    working = False
    await asyncio.sleep(0.03)
    looks = scales.looks
    await asyncio.sleep(0.03)
    assert scales.looks == looks
    scales.bytes = 1001
    worn.claimed(1)
    await eventually(lambda: len(told) == 1)
    assert (told[0].why, told[0].memory) == ("memory", 1001)
    worn.stop()


async def test_a_process_above_its_limit_claims_little_and_at_twice_the_limit_nothing(scales: Scales) -> None:
    worn, _ = worn_by(Limits(memory=1000), lambda: True)
    worn.claimed(1)
    scales.bytes = 1000
    await asyncio.sleep(0.03)
    assert not worn.heavy
    scales.bytes = 1001
    await eventually(lambda: worn.heavy)
    assert (worn.room(64), worn.room(3)) == (10, 3)
    scales.bytes = 2001
    assert worn.room(64) == 0
    scales.bytes = 900
    await eventually(lambda: not worn.heavy)
    worn.stop()


async def test_a_limit_that_leaves_too_little_neither_spins_nor_stops_the_claims(
    scales: Scales, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wear, "CRAMPED_SECONDS", 0.2)
    scales.bytes = 3000
    worn, told = worn_by(Limits(memory=1000), lambda: True)
    assert worn.cramped
    worn.claimed(1)
    await asyncio.sleep(0.1)
    assert (told, worn.heavy) == ([], False)
    await eventually(lambda: [one.why for one in told] == ["memory"])
    assert not worn.heavy
    worn.stop()


@pytest.mark.parametrize(
    ("hanging", "threads", "worn_out"), [(1, 1, True), (1, 3, False), (2, 4, True), (31, 64, False)]
)
async def test_half_of_the_threads_must_hang(scales: Scales, hanging: int, threads: int, worn_out: bool) -> None:
    worn, told = worn_by(Limits())
    worn.threads_changed(hanging, threads)
    worn.threads_changed(hanging, threads)
    assert [(one.why, one.hanging, one.threads) for one in told] == [("threads", hanging, threads)] * worn_out


async def test_without_limits_nothing_is_weighed_after_the_start(scales: Scales) -> None:
    worn, told = worn_by(Limits(), lambda: True)
    worn.claimed(10_000)
    await asyncio.sleep(0.03)
    assert (scales.looks, told, worn.heavy) == (1, [], False)


def test_the_memory_of_this_process_is_known_on_linux() -> None:
    before = resident_bytes()
    assert before is not None
    assert before > 10_000_000
    kept = bytearray(64_000_000)
    kept[::4096] = b"x" * len(kept[::4096])
    after = resident_bytes()
    assert after is not None
    assert 50_000_000 < after - before < 90_000_000


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MB", 512_000_000), ("1.5GiB", 1_610_612_736), (" 64 mib ", 67_108_864), ("2GB", 2_000_000_000)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "512", "512M", "MB", "-5MB", "1e3MB", "1MB", "512 000 MB", "٥١٢MB", "nanMB"])
def test_other_texts_are_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size|at least 16MiB"):
        read_size(text)


def test_sizes_in_sentences() -> None:
    assert [size_text(size) for size in (71_400_000, 999_000_000, 1_530_000_000)] == ["71 MB", "999 MB", "1.53 GB"]


def test_a_setting_that_is_no_size_is_refused_by_name(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DULY_WORKER_MAX_MEMORY", "512")
    with pytest.raises(ConfigError, match=r"worker_max_memory.*'512' is not a size"):
        load_settings()
