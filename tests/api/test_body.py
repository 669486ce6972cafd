"""Bodies are read in bounded steps: too many, too large, too deep or too dense documents are refused at little cost."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import time
import tracemalloc
from typing import Any

import pytest
from starlette.requests import Request

from duly.api import body
from duly.api.body import Parser, read_array, read_bytes, read_content_type, read_lines
from duly.api.problems import Problem

EACH = 320 * 1024
MOST = 10_000


def request_of(content: bytes, **headers: str) -> Request:
    """A request whose body arrives in pieces, as from a socket."""
    pieces = [content[start : start + 65_536] for start in range(0, len(content), 65_536)] or [b""]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    given = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {"type": "http", "headers": [(name.encode(), value.encode()) for name, value in given.items()]}
    return Request(scope, receive)


@pytest.mark.parametrize(
    ("header", "read"),
    [
        ("", ("", "utf-8")),
        ("Application/JSON", ("application/json", "utf-8")),
        (' application/json ;  CharSet = "UTF-8" ', ("application/json", "utf-8")),
        ("application/json; charset=latin-1", ("application/json", "latin-1")),
        ("application/json; boundary=x; charset=utf-16", ("application/json", "utf-16")),
        ("application/json;;", ("application/json", "utf-8")),
        ("application/json; charset=" + " " * 60_000 + 'x"x', ("application/json", 'x"x')),
    ],
)
def test_a_content_type_is_read_by_cuts(header: str, read: tuple[str, str]) -> None:
    assert read_content_type(header) == read


async def test_an_array_is_read_as_any_json_is_wherever_its_parts_are_cut() -> None:
    chance = random.Random(7)
    numbers = [0, -1, 1.5, -2.25e-3, 12345678901234567890]
    texts = ["", "é", "日本", "😀" * 3, 'a"b\\c', "][}{,:"]
    for _ in range(300):
        jobs: list[dict[str, Any]] = [
            {chance.choice(texts): chance.choice([*numbers, *texts, None, True, [1, {}], {"a": []}])}
            for _ in range(chance.randrange(8))
        ]
        text = json.dumps(jobs, indent=chance.choice([None, 1]), ensure_ascii=chance.random() < 0.5)
        # Windows of few bytes, so that sooner or later every character falls on an edge.
        assert await read_array(text.encode(), most=10, each=chance.randrange(110, 140)) == jobs


@pytest.mark.parametrize(
    "text",
    ["", " ", "[", "[{}", "[{},", "[{},]", "[,]", "[{}{}]", "[{}] x", "[{}]]", "{}", "[1.]", '["', "[\xff]", "[}"],
)
async def test_what_is_no_array_is_refused_as_a_whole(text: str) -> None:
    with pytest.raises(Problem) as refused:
        await read_array(text.encode("latin-1"), most=10, each=1000)
    assert (refused.value.status, refused.value.errors[0].field) == (422, "body")


class _Counting(Parser):
    """A parser that counts the documents it has parsed."""

    parsed = 0

    def value(self, text: str, start: int) -> tuple[Any, int]:
        _Counting.parsed += 1
        return super().value(text, start)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> type[_Counting]:
    monkeypatch.setattr(body, "Parser", _Counting)
    _Counting.parsed = 0
    return _Counting


@pytest.mark.parametrize(("read", "one"), [(read_array, b"1,"), (read_lines, b"{}\n")])
async def test_too_many_are_refused_after_the_last_that_is_allowed(
    read: Any, one: bytes, parsed: type[_Counting]
) -> None:
    content = one * (16 * 1024 * 1024 // len(one))
    with pytest.raises(Problem) as refused:
        await read(b"[" + content if read is read_array else content, most=MOST, each=EACH)
    assert refused.value.status == 413
    assert parsed.parsed <= MOST + 2


async def test_an_element_that_is_too_large_is_refused_unread(parsed: type[_Counting]) -> None:
    keys = b'{"a": {' + b",".join(b'"%d":1' % number for number in range(1_500_000)) + b"}}"
    with pytest.raises(Problem) as refused:
        await read_array(b"[{}," + keys + b"]", most=MOST, each=EACH)
    assert refused.value.status == 413
    assert parsed.parsed <= 4
    # If each document is a line, the others are still read.
    read = await read_lines(b"{}\n" + keys + b"\n{}\n", most=MOST, each=EACH)
    assert [isinstance(one, Problem) for one in read] == [False, True, False]


async def test_dense_values_are_refused_before_they_fill_the_memory() -> None:
    job = b'{"payload":[' + b"[]," * 80_000 + b"[]]},"
    dense = b"[" + job * (16 * 1024 * 1024 // len(job)) + b"{}]"
    tracemalloc.start()
    try:
        with pytest.raises(Problem) as refused:
            await read_array(dense, most=MOST, each=EACH)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused.value.status == 413
    assert peak < 160 * 1024 * 1024
    # The same characters inside strings do not count.
    text = json.dumps([{"payload": "[],{}:" * 40_000}] * 50).encode()
    assert len(await read_array(text, most=MOST, each=EACH)) == 50


async def test_others_get_a_turn_by_time_while_a_body_is_read() -> None:
    longest = 0.0
    ended = asyncio.Event()

    async def watch() -> None:
        nonlocal longest
        while not ended.is_set():
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    job = b'{"payload":"' + b"x" * 1500 + b'"},'
    read = await read_array(b"[" + job * 10_000 + b"{}]", most=20_000, each=EACH)
    bomb = gzip.compress(b" " * 15_000_000 + b"{}")
    await read_bytes(request_of(bomb, content_encoding="gzip"), limit=16 * 1024 * 1024)
    ended.set()
    await watching
    assert len(read) == 10_001
    # In processor time, so that other processes do not count. A turn takes 5 ms and one more step.
    assert longest < 0.1


async def test_gzip_is_read_whole_whatever_its_steps_and_nothing_may_follow_it() -> None:
    for size in (0, 1, 262_143, 262_144, 262_145, 3_000_000):
        content = b"a" * size
        assert (await read_bytes(request_of(gzip.compress(content), content_encoding="gzip"), limit=3_000_000))[
            1
        ] == content
    noise = random.Random(3).randbytes(1_000_000)
    assert (await read_bytes(request_of(gzip.compress(noise), content_encoding="gzip"), limit=2_000_000))[1] == noise
    for content, status in ((gzip.compress(b"x") + b"y" * 200_000, 422), (gzip.compress(b"x" * 3_000_001), 413)):
        with pytest.raises(Problem) as refused:
            await read_bytes(request_of(content, content_encoding="gzip"), limit=3_000_000)
        assert refused.value.status == status
