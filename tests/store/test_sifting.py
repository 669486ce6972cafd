"""Sifting a batch when one or all of its rows raise an error: the rows that are written, and the cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import asyncpg
import pytest

from duly.errors import DulyError, StoreUnavailable
from duly.store.sifting import FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, TRIES, Apart, Sifting, without_the_bad


def said(state: str) -> StoreUnavailable:
    error = StoreUnavailable(state)
    error.__cause__ = asyncpg.PostgresError.new({"C": state, "M": "so it is", "S": "ERROR"})
    return error


class Table:
    """A table that accepts all rows but the bad ones."""

    def __init__(self, bad: Collection[int], state: str = "P0001") -> None:
        self.bad = bad
        self.state = state
        self.rows: Counter[int] = Counter()
        self.asked = 0

    async def write(self, rows: Sequence[int]) -> None:
        self.asked += 1
        if any(row in self.bad for row in rows):
            raise said(self.state)
        self.rows.update(rows)


ALL = range(2_000)


@pytest.mark.parametrize("bad", [{0}, {1_999}, {777}, {0, 1}, {0, 1_999}, {3, 999, 1_000, 1_500}, set(ALL[::100])])
async def test_all_but_the_bad_come_through_once(bad: set[int]) -> None:
    table = Table(bad)
    sifting = Sifting(ALL)
    await sifting.through(table.write)
    assert {row for row, _ in sifting.alone} == bad
    assert table.rows == Counter(set(ALL) - bad)
    assert table.asked <= 24 * len(bad)
    assert sifting.left == []


@pytest.mark.parametrize("size", [2_000, 100, 20])
async def test_when_the_whole_is_at_fault_it_is_not_asked_of_each_row(size: int) -> None:
    table = Table(ALL)
    sifting = Sifting(ALL[:size])
    with pytest.raises(StoreUnavailable):
        await sifting.through(table.write)
    assert table.asked <= 22
    assert sifting.alone == []
    assert sorted(sifting.left) == list(ALL[:size])


async def test_what_came_through_stays_and_what_was_found_is_found_when_the_rest_is_hopeless() -> None:
    table = Table(ALL[500:])
    sifting = Sifting(ALL)
    with pytest.raises(StoreUnavailable):
        await sifting.through(table.write)
    assert sifting.fruitful
    assert table.rows == Counter(ALL[:500])
    assert sorted([*sifting.left, *(row for row, _ in sifting.alone)]) == list(ALL[500:])


async def test_a_lost_link_ends_it_and_the_rest_is_left() -> None:
    table = Table({1_999})
    sifting = Sifting(ALL)

    async def write(rows: Sequence[int]) -> None:
        if len(rows) == 500:
            raise StoreUnavailable("gone")
        await table.write(rows)

    with pytest.raises(StoreUnavailable, match="gone"):
        await sifting.through(write)
    assert sorted([*sifting.left, *table.rows]) == list(ALL)


async def test_known_ones_are_tried_alone_and_keep_nobody_else() -> None:
    table = Table({5, 6})
    sifting = Sifting([1, 2, 3], known=[5, 6, 7], split=False)
    await sifting.through(table.write)
    assert sorted(table.rows) == [1, 2, 3, 7]
    assert [row for row, _ in sifting.alone] == [5, 6]
    whole = Sifting([1, 5], known=[7], split=False)
    with pytest.raises(StoreUnavailable):
        await whole.through(table.write)
    assert whole.left == [1, 5, 7]


async def test_whoever_has_a_page_to_write_is_told_of_those_that_could_not_be() -> None:
    assert [row for row, _ in await without_the_bad(ALL, Table({7}).write)] == [7]
    assert len(await without_the_bad(ALL, Table(ALL).write)) == len(ALL)
    with pytest.raises(StoreUnavailable):
        await without_the_bad(ALL, Table({7}, "57P01").write)


def fails(apart: Apart[int, str], error: DulyError, *, fruitful: bool = False) -> bool:
    apart.failed(error, fruitful=fruitful)
    return apart.splitting


def test_a_batch_is_sent_some_times_as_it_is_and_only_for_what_may_be_a_rows() -> None:
    apart: Apart[int, str] = Apart()
    assert [fails(apart, said("P0001")) for _ in range(TRIES - 1)] == [False] * (TRIES - 2) + [True]
    # The search for a bad row was of no use, so the next failure does not start it again.
    assert not fails(apart, said("P0001"))
    assert [fails(apart, said("08006")) for _ in range(10)] == [False] * 10
    while not apart.splitting:
        apart.failed(said("P0001"), fruitful=False)
    assert fails(apart, said("P0001"), fruitful=True)
    apart.passed()
    assert not apart.splitting


def test_the_pause_of_what_was_set_apart_grows() -> None:
    apart: Apart[int, str] = Apart()
    assert apart.seconds_to_next(0.0) is None
    now, pauses = 100.0, []
    for nth in range(8):
        assert apart.put(1, "one", now) == (nth == 0)
        wait = apart.seconds_to_next(now)
        assert wait is not None
        assert apart.take(now + wait - 0.01) == []
        pauses.append(wait)
        now += wait
        assert apart.take(now) == [(1, "one")]
        assert apart.seconds_to_next(now) is None, "the row is being tried"
        assert 1 in apart
    assert pauses[0] == FIRST_PAUSE_SECONDS
    assert pauses == sorted(pauses)
    assert pauses[-1] == MAX_PAUSE_SECONDS
    apart.forget(1)
    assert apart.put(1, "one", now), "the row is set apart anew"


def test_a_clock_that_was_set_back_keeps_nobody_waiting() -> None:
    apart: Apart[int, str] = Apart()
    apart.put(1, "one", 1_000_000.0)
    assert apart.take(5.0) == [(1, "one")]


def test_many_that_are_set_apart_are_tried_the_more_rarely() -> None:
    apart: Apart[int, str] = Apart()
    for _ in range(10):
        for key in range(1_000):
            apart.put(key, "", 0.0)
    assert apart.take(MAX_PAUSE_SECONDS) == []
    assert 0 < len(apart.take(1_000.0)) < 100, "only a few are tried at once"
