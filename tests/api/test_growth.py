"""No request costs more than in proportion to its size.

Every header, parameter and body field in the API's description, and some headers that are not in it, is filled with
repeated characters that are hard for parsers, in growing sizes. The tests judge how the processor time grows from a
quarter of a size to the whole size, not how long a request takes: a slow machine is slow at both.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from duly.api.server import create_app
from duly.operations import StoreOperations

pytestmark = [pytest.mark.search, pytest.mark.timeout(600)]

# Highest growth of the cost from a quarter of a size to the whole: 4 is proportional, 7 is 4 to the power of 1.4.
MOST_GROWTH = 7.0
# A request that costs less is not judged.
FLOOR_SECONDS = 0.02
REPEATS = 4
HEAD_SIZES = (512, 4096, 60_000)
ADDRESS_SIZES = (512, 4096, 20_000)
BODY_SIZES = (512, 8192, 100_000)
BATCH_SIZES = (512, 8192, 65_536)

# Texts to repeat: one character, two that alternate, and texts that make parsers step back.
RUNS = (" ", '"', "\\", "[", "0", ",", ";", "a ", "1,", '" ', '\\"', "W/", "{{", "e\u0301")
# Headers that many clients send, and one that no server knows, each with the beginning of its value.
HEADERS = {
    "Content-Type": "application/json; charset=",
    "Content-Encoding": "gzip",
    "Content-Length": "1",
    "Transfer-Encoding": "chunked",
    "Authorization": "Bearer ",
    "Accept": "application/json",
    "Accept-Encoding": "gzip;q=",
    "Host": "localhost",
    "Origin": "http://localhost",
    "Sec-Fetch-Site": "none",
    "If-Match": '"3"',
    "If-None-Match": '"3"',
    "Range": "bytes=0-",
    "Cookie": "a=b; ",
    "Expect": "100-continue",
    "Connection": "keep-alive",
    "Upgrade": "websocket",
    "Forwarded": "for=",
    "X-Forwarded-For": "1.2.3.4, ",
    "X-Unknown": "",
}

Send = Callable[[int], Awaitable[int]]


class Growth:
    """Sends requests of growing sizes, and records the places whose cost grew too fast."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.asked = 0
        self.statuses: set[int] = set()

    async def watch(self, place: str, send: Send, sizes: tuple[int, ...], base: float) -> None:
        for size in sizes:
            whole = await self._cost(send, size) - base
            if whole < FLOOR_SECONDS or whole <= self._allowed(await self._cost(send, size // 4) - base):
                continue
            # Measure again, in case it was chance. Each request is a little longer, so that no cache helps.
            whole = min([await self._cost(send, size + number) for number in range(1, REPEATS)]) - base
            quarter = min([await self._cost(send, size // 4 + number) for number in range(1, REPEATS)]) - base
            if whole >= FLOOR_SECONDS and whole > self._allowed(quarter):
                self.found.append(f"{place}: {quarter:.4f} s for {size // 4}, {whole:.4f} s for {size}")
                return

    @staticmethod
    def _allowed(quarter: float) -> float:
        return MOST_GROWTH * max(quarter, FLOOR_SECONDS / 5)

    async def base(self, send: Send) -> float:
        return min([await self._cost(send, 1 + number) for number in range(REPEATS)])

    async def _cost(self, send: Send, size: int) -> float:
        self.asked += 1
        # Without garbage collection: its cost depends on the size of this process, and its time on chance.
        gc.disable()
        try:
            began = time.process_time()
            status = await send(size)
            spent = time.process_time() - began
        finally:
            gc.enable()
        self.statuses.add(status)
        assert status < 500 or status == 503, f"{status} for {size}"
        return spent


def run_of(unit: str, size: int) -> str:
    return (unit * (size // len(unit) + 1))[:size]


class Door:
    """Sends requests to the app itself, without a socket."""

    def __init__(self, app: Any, key: str) -> None:
        self._app = app
        self._key = key

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: str = "",
        body: bytes | None = None,
        media_type: str = "application/json",
    ) -> int:
        headers = [(b"host", b"localhost"), (b"authorization", b"Bearer " + self._key.encode())]
        if body is not None:
            headers += [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode())]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "root_path": "", "query_string": query.encode(),
            "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {},
        }  # fmt: skip
        status: list[int] = []
        left = [body or b""]

        async def receive() -> dict[str, Any]:
            if not left:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": left.pop(), "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])

        await self._app(scope, receive, send)
        return status[0]


class Line:
    """A connection to the server, made anew when it is closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, head: bytes) -> int:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        try:
            # The timeout ends a wait of the server for a body that does not come, which costs no processor time. It
            # cannot interrupt the server's computing, which holds this event loop.
            async with asyncio.timeout(2):
                writer.write(head)
                answer = await reader.readuntil(b"\r\n\r\n")
                length = answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or 0))
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            answer = b"HTTP/1.1 400 closed"
        # Closed, so that the rest of an incomplete request is not read as part of the next request.
        self.close()
        return int(answer.split(b" ", 2)[1])

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


@pytest.fixture
async def key(store_operations: StoreOperations) -> str:
    return (await store_operations.keys.create(tenant="a", role="admin")).text


async def test_no_header_costs_more_than_in_proportion(
    store_operations: StoreOperations, serving: Any, key: str
) -> None:
    growth = Growth()
    async with serving(store_operations) as url:
        line = Line(int(url.rpartition(":")[2]))
        described = {
            parameter["name"]: str(parameter.get("example", ""))
            for path in create_app(store_operations).openapi()["paths"].values()
            for operation in path.values()
            for parameter in operation.get("parameters", ())
            if parameter["in"] == "header"
        }
        for name, example in {**described, **HEADERS}.items():
            method = "PATCH" if name == "If-Match" else "POST"
            path = "/api/v1/jobs/x" if method == "PATCH" else "/api/v1/jobs"
            usual = {"Host": "localhost", "Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            usual.pop(name, None)
            if name not in ("Content-Length", "Transfer-Encoding", "Expect"):
                usual["Content-Length"] = "2"
            start = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{one}: {text}\r\n" for one, text in usual.items())

            def send(
                size: int, unit: str, end: str, start: str = start, name: str = name, example: str = example
            ) -> Any:
                value = example + run_of(unit, size) + end
                return line.ask(f"{start}{name}: {value}\r\n\r\n{{}}".encode())

            base = await growth.base(lambda size, send=send: send(size, "a", ""))  # type: ignore[misc]
            for unit in RUNS:
                for end in ('x"x', "\x00"):

                    def sized(size: int, unit: str = unit, end: str = end, send: Any = send) -> Any:
                        return send(size, unit, end)

                    await growth.watch(f"{name} of {unit!r} … {end!r}", sized, HEAD_SIZES, base)

        def many(size: int) -> Any:
            return line.ask(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"a:b\r\n" * (size // 5) + b"\r\n")

        await growth.watch("many headers", many, HEAD_SIZES, await growth.base(many))
        line.close()
    assert not growth.found, "\n".join(growth.found)
    assert {201, 400, 401, 415, 422} & growth.statuses >= {400, 401, 415, 422}


def places_of(description: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


async def test_no_parameter_costs_more_than_in_proportion(store_operations: StoreOperations, key: str) -> None:
    growth = Growth()
    app = create_app(store_operations)
    door = Door(app, key)
    for method, path, operation in places_of(app.openapi()):
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "header":
                continue
            name, example = parameter["name"], str(parameter.get("example", ""))

            def send(
                size: int, unit: str, end: str, method: str = method, path: str = path, name: str = name,
                inside: str = parameter["in"], example: str = example,
            ) -> Any:  # fmt: skip
                text = quote(example + run_of(unit, size) + end, safe="")
                if inside == "path":
                    whole = run_of(unit, size).replace("/", "_") + end
                    return door.ask(method, path.replace("{" + name + "}", whole))
                filled = path.replace("{job_id}", EXAMPLE_ID).replace("{run_id}", EXAMPLE_ID)
                return door.ask(method, filled, query=f"{name}={text}")

            path_base = await growth.base(lambda size, send=send: send(size, "a", ""))  # type: ignore[misc]
            for unit in RUNS:

                def sized(size: int, unit: str = unit, send: Any = send) -> Any:
                    return send(size, unit, 'x"')

                await growth.watch(f"{method} {path} {name} of {unit!r}", sized, ADDRESS_SIZES, path_base)

            def many(size: int, method: str = method, path: str = path, name: str = name) -> Any:
                filled = path.replace("{job_id}", EXAMPLE_ID).replace("{run_id}", EXAMPLE_ID)
                return door.ask(method, filled, query="&".join([f"{name}={number}:x" for number in range(size // 8)]))

            await growth.watch(f"{method} {path} many {name}", many, ADDRESS_SIZES, path_base)
    assert not growth.found, "\n".join(growth.found)
    assert growth.asked > 500


EXAMPLE_ID = "01900000-0000-7000-8000-000000000000"


#: Values of a field besides repeated characters, as JSON of about the given size.
VALUES: dict[str, Callable[[int], str]] = {
    "many items": lambda size: "[" + "1," * (size // 2) + "1]",
    "many lists": lambda size: "[" + "[]," * (size // 3) + "[]]",
    "many keys": lambda size: "{" + ",".join([f'"{number}":1' for number in range(size // 8)]) + "}",
    "many texts": lambda size: "{" + ",".join([f'"{number}":"x"' for number in range(size // 11)]) + "}",
    "a long key": lambda size: '{"' + "k" * size + '":"x"}',
    "nested lists": lambda size: "[" * (size // 2) + "]" * (size // 2),
    "nested objects": lambda size: '{"a":' * (size // 6) + "1" + "}" * (size // 6),
    "digits": lambda size: "1" * size,
    "decimals": lambda size: "0." + "1" * size,
    "an exponent": lambda size: "1e" + "9" * size,
    "surrogates": lambda size: '"' + "\\ud800" * (size // 6) + '"',
    "NULs": lambda size: '"' + "\\u0000" * (size // 6) + '"',
    "twins": lambda size: "{" + ",".join(['"a":1'] * (size // 6)) + "}",
}


Fill = Callable[[str], str]


def within(outer: dict[str, Any], field: str) -> Fill:
    """A function that returns `outer` as JSON, with the given JSON in `field`."""
    rest = "".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in outer.items() if name != field)
    return lambda value: "{" + json.dumps(field) + ":" + value + rest + "}"


def nested(outer: Fill, inner: Fill) -> Fill:
    return lambda value: outer(inner(value))


def fields_of(schema: dict[str, Any], example: dict[str, Any]) -> Iterator[tuple[str, Fill]]:
    """Every field of a body, also those of alerts and of each kind of handler, with a function that fills it."""
    for field, rules in schema["properties"].items():
        yield field, within(example, field)
        for kind in rules.get("anyOf", ()):
            inner = kind.get("properties", {})
            least = {"url": "https://example.org/", "argv": ["true"]}
            least = {name: value for name, value in least.items() if name in inner}
            if "type" in inner:
                least["type"] = inner["type"]["const"]
            for part in inner:
                yield f"{field}.{part}", nested(within(example, field), within(least, part))
    yield "an unknown field", within(example, "unknown")


async def test_no_field_of_a_body_costs_more_than_in_proportion(store_operations: StoreOperations, key: str) -> None:
    growth = Growth()
    app = create_app(store_operations)
    door = Door(app, key)
    description = app.openapi()
    schemas = description["components"]["schemas"]
    known: set[str] = set()
    for method, path, operation in places_of(description):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is None or "$ref" not in content["schema"]:
            continue
        filled = path.replace("{job_id}", EXAMPLE_ID)
        schema = schemas[content["schema"]["$ref"].rpartition("/")[2]]
        example = dict(content["example"] or {})
        ask = lambda body, method=method, filled=filled: door.ask(method, filled, body=body)  # noqa: E731
        plain = json.dumps(example).encode()
        base = await growth.base(lambda size, ask=ask, plain=plain: ask(plain))  # type: ignore[misc]
        for field, fill in fields_of(schema, example):
            start = example.get(field) if isinstance(example.get(field), str) else ""
            # A field that another call has too is read by the same code, so a quarter of the texts is enough.
            every = 4 if field in known or "." in field else 1
            known.add(field)
            for unit in RUNS[::every]:

                def sized(size: int, unit: str = unit, fill: Any = fill, ask: Any = ask, start: Any = start) -> Any:
                    return ask(fill(json.dumps(start + run_of(unit, size), ensure_ascii=False)).encode())

                await growth.watch(f"{method} {path} {field} of {unit!r}", sized, BODY_SIZES, base)
            for kind in list(VALUES)[::every]:

                def shaped(size: int, kind: str = kind, fill: Any = fill, ask: Any = ask) -> Any:
                    return ask(fill(VALUES[kind](size)).encode())

                await growth.watch(f"{method} {path} {field} with {kind}", shaped, BODY_SIZES, base)
        for kind in VALUES:

            def whole(size: int, kind: str = kind, ask: Any = ask) -> Any:
                return ask(VALUES[kind](size).encode())

            await growth.watch(f"{method} {path} being {kind}", whole, BODY_SIZES, base)
    assert not growth.found, "\n".join(growth.found)
    assert {201, 413, 422} & growth.statuses == {201, 422}


async def test_no_batch_costs_more_than_in_proportion(store_operations: StoreOperations, key: str) -> None:
    growth = Growth()
    door = Door(create_app(store_operations), key)
    job = '{"name":"n","handler":"h","payload":%s}'
    for media_type, start, between, end in (
        ("application/json", "[", ",", "]"),
        ("application/x-ndjson", "", "\n", ""),
    ):

        def ask(body: str, media_type: str = media_type) -> Any:
            return door.ask("POST", "/api/v1/jobs/batch", body=body.encode(), media_type=media_type)

        base = await growth.base(lambda size, ask=ask, start=start, end=end: ask(start + job % size + end))  # type: ignore[misc]
        for kind in VALUES:

            def one(size: int, kind: str = kind, ask: Any = ask, start: str = start, end: str = end) -> Any:
                return ask(start + job % VALUES[kind](size) + end)

            await growth.watch(f"{media_type} with {kind}", one, BATCH_SIZES, base)
        many = {
            "numbers": "1", "lists": "[]", "objects": "{}", "nothing": "", "spaces": " ", "brackets": "[",
            "quotes": '"', "unknown fields": '{"a":1,"b":2,"c":3}', "wrong names": '{"name":1}',
        }  # fmt: skip
        for kind, item in many.items():

            def several(size: int, item: str = item, ask: Any = ask, edges: Any = (start, between, end)) -> Any:
                return ask(edges[0] + edges[1].join([item] * (size // (len(item) + 1))) + edges[2])

            await growth.watch(f"{media_type} of many {kind}", several, BATCH_SIZES, base)
    assert not growth.found, "\n".join(growth.found)
