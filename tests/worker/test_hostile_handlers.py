"""Handlers that raise or return anything at all: each run ends in exactly one outcome, of the right kind.

The classes are random combinations of odd traits. `DULY_TEST_HOSTILE` sets their number (default 400), `DULY_TEST_SEED`
the seed; a failure names its seed.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from duly.clock import DatabaseClock
from duly.errors import Permanent, RetryAfter, Snooze, Unable
from duly.model import Buried, ClaimedRun, Policy, Requeued, Succeeded
from duly.worker.executor import Executor, Outcome
from duly.worker.handler.errors import MAX_ERROR_BYTES, exception_text, result_text
from duly.worker.handler.task import Task
from duly.worker.processes.child import _signal_of

SEED = int(os.environ.get("DULY_TEST_SEED", "1"))
NUMBER = int(os.environ.get("DULY_TEST_HOSTILE", "400"))


class Panic(BaseException):
    """An error like those of some extension modules: not a subclass of `Exception`."""


class Text(str):
    """A text that cannot be cut, compared or joined."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        raise Panic("no part of this text")

    def __len__(self) -> int:
        raise Panic("no length")

    def encode(self, *args: Any) -> Any:
        raise Panic("no bytes")

    replace = encode


def raising(*_: Any, **__: Any) -> Any:
    raise Panic("hostile")


def stopping(*_: Any, **__: Any) -> Any:
    raise StopIteration


BASES: dict[type[BaseException], tuple[Any, ...]] = {
    Exception: ("plain",), BaseException: ("base",), Panic: ("panic",), ValueError: ("value",), KeyError: ("key",),
    OSError: (2, "gone", "file"), StopIteration: (1,), StopAsyncIteration: (), GeneratorExit: (), SystemExit: (3,),
    KeyboardInterrupt: (), asyncio.CancelledError: ("itself",), TimeoutError: (), RecursionError: ("deep",),
    MemoryError: (), ArithmeticError: (), AttributeError: ("none",), NameError: ("none",), ImportError: ("none",),
    UnicodeDecodeError: ("utf-8", b"\xff", 0, 1, "odd"), SyntaxError: ("odd", ("file", "line", "offset", "text")),
    BaseExceptionGroup: ("group", [ValueError("one"), Panic("two")]), Permanent: ("never",), RetryAfter: (5,),
    Snooze: (7,), Unable: ("not here",),
}  # fmt: skip


def lone_group() -> BaseException:
    error: BaseException = ValueError("innermost")
    for _ in range(2000):
        error = ExceptionGroup("nested", [error])  # type: ignore[type-var]
    return error


# Traits of a class that make its errors hard to describe.
TRAITS: dict[str, Callable[[], dict[str, Any]]] = {
    "raising str": lambda: {"__str__": raising},
    "str that ends an iteration": lambda: {"__str__": stopping},
    "str that is none": lambda: {"__str__": lambda _: 7},
    "str of another class": lambda: {"__str__": lambda _: Text("odd")},
    "huge str": lambda: {"__str__": lambda _: "x" * 5_000_000},
    "str with NUL and surrogates": lambda: {"__str__": lambda _: "a\x00b\ud800c\udfff"},
    "raising repr": lambda: {"__repr__": raising},
    "raising class": lambda: {"__class__": property(raising)},
    "lying class": lambda: {"__class__": property(lambda _: Permanent)},
    "class that is none": lambda: {"__class__": 7},
    "module that is none": lambda: {"__module__": 7},
    "module with NUL": lambda: {"__module__": "a\x00\ud800"},
    "raising notes": lambda: {"__notes__": property(raising)},
    "notes that are none": lambda: {"__notes__": 7},
    "odd notes": lambda: {"__notes__": [7, Text("odd"), "\x00\ud800", None]},
    "raising equality": lambda: {"__eq__": raising, "__hash__": raising},
    "slots": lambda: {"__slots__": ()},
    "no truth": lambda: {"__bool__": raising},
    "raising length": lambda: {"__len__": raising},
}


class Meta(type):
    """A class that raises when it is asked for its name or its members."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise Panic("no name")

    def __instancecheck__(cls, instance: Any) -> bool:
        raise Panic("no instances")

    def __repr__(cls) -> str:
        raise Panic("no repr")


def hostile_error(dice: random.Random) -> tuple[BaseException, type[BaseException]]:
    """An error, and the class that decides its outcome."""
    base = dice.choice(list(BASES))
    body: dict[str, Any] = {}
    for trait in dice.sample(list(TRAITS), dice.choice((0, 1, 1, 2, 3))):
        body |= TRAITS[trait]()
    if "__slots__" in body and "__notes__" in body:
        del body["__slots__"]
    meta = Meta if dice.random() < 0.1 else type
    kind = meta("Hostile", (base,), body) if body or meta is Meta else base
    error: BaseException = kind(*BASES[base])
    match dice.randrange(8):
        case 0:
            error.__cause__ = error
        case 1:
            error.__context__, error.__cause__ = ValueError("before"), kind(*BASES[base])
        case 2:
            error.__context__ = lone_group()
        case 3 if "__notes__" not in body and "__slots__" not in body:
            error.add_note("a note \x00 \ud800" * dice.choice((1, 10_000)))
    return error, base


def claimed(handler: str, number: int) -> ClaimedRun:
    run = ClaimedRun()
    run.claim_id, run.job_id, run.ordinal, run.attempt, run.flags = UUID(int=1), UUID(int=number), number, 1, 0
    run.scheduled_at, run.name, run.handler, run.target = datetime.now(UTC), f"run {number}", handler, None
    run.payload, run.payload_ref, run.timezone, run.policy_text = json.dumps({"number": number}), None, "UTC", None
    return run


def asyncs(values: Mapping[int, Any], *, raised: bool) -> dict[str, Task]:
    """Two tasks, on the loop and in a thread, that return or raise the value of the given number."""

    def in_thread(number: int) -> Any:
        if raised:
            raise values[number]
        return values[number]

    async def on_loop(number: int) -> Any:
        if number % 3 == 0:
            await asyncio.sleep(0)
        return in_thread(number)

    policy = Policy(max_retries=3, timeout_seconds=60)
    return {
        "loop": Task("loop", on_loop, policy=policy),
        "thread": Task("thread", in_thread, policy=policy),
    }


async def outcomes_of(values: Mapping[int, Any], handler: str, *, raised: bool) -> dict[int, list[Outcome | None]]:
    ended: dict[int, list[Outcome | None]] = {number: [] for number in values}
    left = len(values)
    over = asyncio.Event()

    def report(run: ClaimedRun, outcome: Outcome | None) -> None:
        nonlocal left
        ended[run.ordinal].append(outcome)
        left -= 1
        if not left:
            over.set()

    executor = Executor(asyncs(values, raised=raised), DatabaseClock(), report, threads=4)
    for number in values:
        executor.start(claimed(handler, number))
    try:
        async with asyncio.timeout(60 + NUMBER / 20):
            await over.wait()
        await asyncio.sleep(0)
    except TimeoutError:
        missing = [number for number, found in ended.items() if not found]
        raise AssertionError(f"without an outcome: {missing}") from None
    finally:
        executor.close()
    return ended


def assert_storable(text: str) -> Mapping[str, Any]:
    assert type(text) is str
    assert "\x00" not in text
    assert "\\u0000" not in text
    text.encode()
    assert len(text.encode()) < 2 * MAX_ERROR_BYTES
    found: Mapping[str, Any] = json.loads(text)
    assert set(found) == {"type", "message", "traceback"}
    return found


@pytest.fixture
def unwritable_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Duly's log goes to a stream that is closed."""
    closed = io.StringIO()
    closed.close()
    logger, handler = logging.getLogger("duly"), logging.StreamHandler(closed)
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


@pytest.mark.usefixtures("unwritable_log")
async def test_a_log_that_cannot_be_written_costs_no_run_its_outcome() -> None:
    class Odd(Unable):
        def __bool__(self) -> bool:
            raise Panic("no truth")

    ended = await outcomes_of({1: Odd("not here")}, "loop", raised=True)
    assert isinstance(ended[1][0], Requeued)


@pytest.mark.parametrize("handler", ["loop", "thread"])
async def test_whatever_a_handler_raises_becomes_one_outcome_of_its_kind(handler: str) -> None:
    dice = random.Random(SEED)
    made = {number: hostile_error(dice) for number in range(1, NUMBER + 1)}
    ended = await outcomes_of({number: error for number, (error, _) in made.items()}, handler, raised=True)
    for number, (_, base) in made.items():
        told = f"seed {SEED}, number {number}: {base.__name__} in a {handler} became {ended[number]}"
        assert len(ended[number]) == 1, told
        outcome = ended[number][0]
        if base is Permanent:
            assert isinstance(outcome, Buried), told
            assert outcome.status == "dead", told
            assert assert_storable(outcome.error)["traceback"], told
        elif base in (Snooze, Unable):
            assert isinstance(outcome, Requeued), told
            assert (outcome.state, outcome.refund, outcome.error) == ("queued", 1, None), told
        elif isinstance(outcome, Buried):
            raise AssertionError(told)
        else:
            assert isinstance(outcome, Requeued), told
            assert (outcome.state, outcome.refund) == ("retrying", 0), told
            assert outcome.error is not None, told
            assert_storable(outcome.error)


def test_whatever_is_raised_can_be_told_by_a_child_process() -> None:
    dice = random.Random(SEED + 1)
    for number in range(NUMBER):
        error, base = hostile_error(dice)
        told = f"seed {SEED + 1}, number {number}: {base.__name__}"
        try:
            raise error
        except BaseException as caught:  # noqa: BLE001 - as the child does
            assert_storable(exception_text(caught))
            signal = _signal_of(caught)
        json.dumps(signal)
        wanted = {Permanent: "permanent", RetryAfter: "retry_after", Snooze: "snooze", Unable: "unable"}.get(base)
        assert (signal[0] if signal else None) == wanted, told


class Odd:
    """A result that raises whatever is done with it."""

    def __init__(self, **body: Any) -> None: ...

    __repr__ = __str__ = __eq__ = __len__ = __iter__ = raising
    __hash__ = None  # type: ignore[assignment]


class Liar:
    @property
    def __class__(self) -> Any:
        return dict

    @__class__.setter
    def __class__(self, value: Any) -> None: ...


class OddDict(dict[Any, Any]):
    items = keys = __iter__ = raising


class OddInt(int):
    __repr__ = __str__ = bit_length = raising


def hostile_result(dice: random.Random, depth: int = 0) -> Any:
    choices: list[Callable[[], Any]] = [
        Odd, Liar, lambda: OddDict(a=1), lambda: OddInt(7), lambda: Text("odd"), lambda: "\x00\ud800",
        lambda: float("nan"), lambda: 10**6000, lambda: b"\xff", lambda: {1, 2}, lambda: object(), lambda: Odd,
        lambda: (number for number in range(3)), lambda: Panic("as a result"), lambda: "x" * 300_000, lambda: 1e308,
        lambda: {"\x00": 1, None: 2, (1, 2): 3}, lambda: [[]] * 3, lambda: datetime.now(UTC), lambda: {"fine": [1]},
    ]  # fmt: skip
    if depth < 3:
        choices += [
            lambda: [hostile_result(dice, depth + 1) for _ in range(dice.randrange(4))],
            lambda: {dice.choice(("a", 1, "\ud800")): hostile_result(dice, depth + 1)},
        ] * 4
        choices += [_cycle, _deep]
    return dice.choice(choices)()


def _cycle() -> Any:
    found: list[Any] = []
    found.append({"again": found})
    return found


def _deep() -> Any:
    found: Any = "deep"
    for _ in range(5_000):
        found = [found]
    return found


@pytest.mark.parametrize("handler", ["loop", "thread"])
async def test_whatever_a_handler_returns_is_a_success(handler: str) -> None:
    dice = random.Random(SEED + 2)
    made = {number: hostile_result(dice) for number in range(1, NUMBER + 1)}
    ended = await outcomes_of(made, handler, raised=False)
    for number, found in ended.items():
        told = f"seed {SEED + 2}, number {number} in a {handler} became {[type(one) for one in found]}"
        assert len(found) == 1, told
        assert isinstance(found[0], Succeeded), told
        text = found[0].result
        assert type(text) is str, told
        assert "\\u0000" not in text, told
        text.encode()
        json.loads(text)


def test_a_result_that_cannot_be_shown_is_kept_as_a_word_about_that() -> None:
    text = result_text(Odd())
    assert text is not None
    assert "could not be kept" in json.loads(text)
