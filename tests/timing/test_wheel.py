"""The timing wheel returns every due entry, none early, and takes little memory."""

from __future__ import annotations

import random
import time
import tracemalloc
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.timing import Wheel

SECOND = 1_000_000
NOW = 1_767_225_600 * SECOND
MILLION = 1_000_000


def job(number: int) -> bytes:
    return number.to_bytes(16)


def flat(due: list[tuple[int, list[tuple[bytes, int]]]]) -> list[tuple[int, bytes, int]]:
    return [(shard, job_id, at) for shard, entries in due for job_id, at in entries]


def test_an_empty_wheel_has_nothing() -> None:
    wheel = Wheel()
    assert wheel.advance(NOW) == []
    assert wheel.next_due_us() is None
    assert len(wheel) == 0


def test_entries_come_out_at_their_time_and_once() -> None:
    wheel = Wheel()
    wheel.add(3, job(1), NOW + 1)
    assert wheel.advance(NOW) == []
    assert wheel.next_due_us() == NOW + 1
    assert wheel.advance(NOW + 1) == [(3, [(job(1), NOW + 1)])]
    assert wheel.advance(NOW + 10 * SECOND) == []
    assert (len(wheel), wheel.next_due_us()) == (0, None)


def test_they_are_grouped_by_shard_in_order_of_due_time() -> None:
    wheel = Wheel()
    wheel.load(1, job(3) + job(1) + job(2), array("q", [NOW + 3, NOW + 1, NOW + 2]))
    wheel.load(2, job(4), [NOW])
    due = dict(wheel.advance(NOW + SECOND))
    assert due == {1: [(job(1), NOW + 1), (job(2), NOW + 2), (job(3), NOW + 3)], 2: [(job(4), NOW)]}


def test_what_is_already_due_comes_out_next() -> None:
    wheel = Wheel()
    wheel.add(0, job(1), NOW + 5 * SECOND)
    wheel.advance(NOW + 6 * SECOND)
    wheel.add(0, job(2), NOW - 3600 * SECOND)
    wheel.add(0, job(3), NOW + 6 * SECOND)
    wheel.load(0, job(4), [0])
    assert wheel.next_due_us() == 0
    assert flat(wheel.advance(NOW + 6 * SECOND)) == [
        (0, job(4), 0),
        (0, job(2), NOW - 3600 * SECOND),
        (0, job(3), NOW + 6 * SECOND),
    ]


def test_a_job_due_soon_after_a_load_is_not_lost_in_the_slot_at_hand() -> None:
    wheel = Wheel()
    wheel.load(0, job(1) + job(2), [NOW + 1, NOW + 100_000])
    assert len(flat(wheel.advance(NOW + 1))) == 1
    wheel.add(0, job(3), NOW + 50_000)
    wheel.load(0, job(4), [NOW + 25_000])
    assert wheel.next_due_us() == NOW + 25_000
    assert [job_id for _, job_id, _ in flat(wheel.advance(NOW + SECOND))] == [job(4), job(3), job(2)]


def test_what_is_loaded_again_is_not_held_twice() -> None:
    wheel = Wheel()
    ids, dues = b"".join(job(n) for n in range(100)), array("q", [NOW + n * 100_000 for n in range(100)])
    assert wheel.load(0, ids, dues) == 100
    assert wheel.load(0, ids, dues) == 0
    wheel.add(0, job(1000), NOW + 950_000)
    # Half of the entries have come out. Of the entries loaded again, only the two that the wheel did not hold are new.
    assert len(flat(wheel.advance(NOW + 5 * SECOND))) == 52
    again = ids[16 * 51 :] + job(2000) + job(2001)
    assert wheel.load(0, again, array("q", [*dues[51:], NOW + 5_050_000, NOW + 9_950_000])) == 2
    # The same job at another time is another entry: the wheel cannot know which of the two is right.
    assert wheel.load(0, job(99), [dues[99] + 1]) == 1
    assert len(wheel) == 49 + 3 == len(flat(wheel.advance(NOW + 100 * SECOND)))


def test_a_dropped_shard_is_forgotten_and_can_come_back() -> None:
    wheel = Wheel()
    wheel.load(1, job(1) + job(2), [NOW, NOW + 60 * SECOND])
    wheel.add(2, job(3), NOW + SECOND)
    wheel.drop_shard(1)
    wheel.drop_shard(99)
    assert (len(wheel), wheel.next_due_us()) == (1, NOW + SECOND)
    wheel.add(1, job(4), NOW)
    assert flat(wheel.advance(NOW + 100 * SECOND)) == [(2, job(3), NOW + SECOND), (1, job(4), NOW)]


def test_the_far_future_is_held_until_it_comes() -> None:
    wheel = Wheel(horizon_us=10 * SECOND)
    ten_years = 10 * 365 * 86_400 * SECOND
    wheel.add(0, job(1), NOW + ten_years)
    assert wheel.advance(NOW + ten_years - 1) == []
    assert len(wheel.advance(NOW + ten_years)) == 1


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="16"):
        Wheel().add(0, b"short", NOW)
    with pytest.raises(ValueError, match="bytes of ids"):
        Wheel().load(0, job(1), [NOW, NOW])
    with pytest.raises(ValueError, match="tick"):
        Wheel(tick_us=0)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_behaves_like_a_plain_list(data: st.DataObject) -> None:
    wheel = Wheel(
        tick_us=data.draw(st.sampled_from([1, 1000])), horizon_us=data.draw(st.sampled_from([1000, 600 * SECOND]))
    )
    held: list[tuple[int, bytes, int]] = []
    now = NOW
    for number in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["add", "load", "advance", "advance", "drop"]))
        shard = data.draw(st.integers(0, 3))
        if action == "drop":
            wheel.drop_shard(shard)
            held = [entry for entry in held if entry[0] != shard]
        elif action == "advance":
            now += data.draw(st.sampled_from([0, 1, 999, 250_000, 3 * SECOND, 700 * SECOND]))
            due = wheel.advance(now)
            assert sorted(flat(due)) == sorted(entry for entry in held if entry[2] <= now)
            assert len({shard for shard, _ in due}) == len(due)
            assert all(entries == sorted(entries, key=lambda entry: entry[1]) for _, entries in due)
            held = [entry for entry in held if entry[2] > now]
        else:
            dues = [
                now + offset
                for offset in data.draw(st.lists(st.integers(-SECOND, 900 * SECOND), min_size=1, max_size=5))
            ]
            ids = [job(number * 100 + index) for index in range(len(dues))]
            held += [(shard, job_id, at) for job_id, at in zip(ids, dues, strict=True)]
            if action == "load":
                wheel.load(shard, b"".join(ids), array("q", dues))
            else:
                for job_id, at in zip(ids, dues, strict=True):
                    wheel.add(shard, job_id, at)
        assert len(wheel) == len(held)
        assert wheel.next_due_us() == min((entry[2] for entry in held), default=None)


@pytest.fixture(scope="module")
def million() -> list[tuple[int, bytes, array[int]]]:
    """A million entries over ten minutes in 64 shards."""
    dice = random.Random(1)
    each = MILLION // 64
    return [
        (shard, dice.randbytes(16 * each), array("q", [NOW + dice.randrange(600 * SECOND) for _ in range(each)]))
        for shard in range(64)
    ]


def test_a_million_entries_take_at_most_64_bytes_each(million: list[tuple[int, bytes, array[int]]]) -> None:
    tracemalloc.start()
    wheel = Wheel()
    for shard, ids, dues in million:
        wheel.load(shard, ids, dues)
    loaded = tracemalloc.get_traced_memory()[0]
    wheel.advance(NOW + SECOND)
    running = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(wheel) > MILLION * 0.99
    print(f"{loaded / MILLION:.1f} bytes per entry when loaded, {running / MILLION:.1f} when running")
    assert loaded / MILLION <= 64
    assert running / MILLION <= 64


def test_a_million_entries_are_loaded_in_seconds_and_ticked_in_microseconds(
    million: list[tuple[int, bytes, array[int]]],
) -> None:
    wheel = Wheel()
    start = time.process_time()
    for shard, ids, dues in million:
        wheel.load(shard, ids, dues)
    load = time.process_time() - start
    assert load <= 5
    now, out, worst = NOW, 0, 0.0
    start = time.process_time()
    while now < NOW + 20 * SECOND:
        now += 10_000
        tick = time.process_time()
        out += sum(len(entries) for _, entries in wheel.advance(now))
        worst = max(worst, time.process_time() - tick)
    drained = time.process_time() - start
    assert out == sum(due <= now for _, _, dues in million for due in dues)
    following = wheel.next_due_us()
    assert following is not None
    start = time.process_time()
    for _ in range(10_000):
        wheel.advance(following - 1)
    idle = (time.process_time() - start) / 10_000
    print(f"load {load:.2f} s, 20 s of ticks {drained:.2f} s, worst {worst * 1e3:.1f} ms, idle {idle * 1e6:.2f} µs")
    assert idle < 20e-6
    assert drained < 5
