"""The worst that one tenant can do, as a process: every costly request that an attack on Duly has ever used.

    python -m cli.besieging PORT SECONDS    (with the keys in READ_KEY and WRITE_KEY)

Each attack repeats itself on connections of its own until the time is up. The last line on standard output counts, for
each attack, the answers by status; `0` stands for a connection that ended without an answer.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

# All positions from both ends, and all numbers from 0 to 59: they make BYSETPOS, BYMINUTE and BYSECOND cost most.
_PLACES = ",".join(str(place) for place in (*range(1, 367), *range(-366, 0)))
_ALL = ",".join(str(number) for number in range(60))
GAPS = (
    "RRULE:FREQ=YEARLY;BYMONTH=3;BYDAY=2SU;BYHOUR=2;"
    f"BYMINUTE={_ALL};BYSECOND={_ALL};BYSETPOS={_PLACES}"
)  # fmt: skip
COUNTED = f"RRULE:FREQ=DAILY;BYHOUR=0;BYMINUTE=0;BYSETPOS={_PLACES};COUNT=1000000"
PLACES = f"RRULE:FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYHOUR=9;BYMINUTE=0;BYSECOND=0;BYSETPOS={_PLACES}"
_PATIENCE = 20.0
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Request:
    """A request on a connection of its own. `reads`: whether the client reads the answer or leaves it unread."""

    method: str
    path: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    writes: bool = False
    reads: bool = True

    def encoded(self, key: str) -> bytes:
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {key}"]
        if self.method == "POST":
            lines.append(f"Content-Length: {len(self.body)}")
        if not any(name == "Content-Type" for name, _ in self.headers):
            lines.append("Content-Type: application/json")
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines.append("Connection: close")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


def _post(path: str, body: Any, **how: Any) -> Request:
    return Request("POST", f"/api/v1{path}", json.dumps(body).encode(), **how)


def _preview(schedule: str, **fields: Any) -> Request:
    return _post("/schedules/preview", {"schedule": schedule, "timezone": "America/New_York", **fields})


def _stored_rule() -> Request:
    """A rule that is cheap to accept, because of the date added to it, and costly to plan after that date."""
    soon = datetime.now(UTC) + timedelta(seconds=3)
    return _post(
        "/jobs",
        {
            "name": "gaps",
            "handler": "greet",
            "schedule": f"{GAPS}\nRDATE:{soon:%Y%m%dT%H%M%SZ}",
            "timezone": "America/New_York",
            "dst_gap": "skip",
        },
        writes=True,
    )


def _rules() -> Request:
    """Ten thousand different rules in one body."""
    first = next(_numbers) * 10_000
    jobs = (
        {
            "name": "rule",
            "handler": "greet",
            "schedule": f"RRULE:FREQ=YEARLY;INTERVAL={1 + (first + n) % 50};BYYEARDAY={1 + n % 366};BYSECOND={n % 60};"
            f"BYSETPOS=1,-{1 + n % 300}",
        }
        for n in range(10_000)
    )
    return _batch(("[" + ",".join(json.dumps(job) for job in jobs) + "]").encode())


def _batch(body: bytes) -> Request:
    return Request(
        "POST", "/api/v1/jobs/batch", gzip.compress(body, 1), headers=(("Content-Encoding", "gzip"),), writes=True
    )


def _listed(what: str) -> Request:
    return Request("GET", f"/api/v1/jobs?{what}")


def attacks() -> dict[str, Callable[[], Request]]:
    """The attacks by name: each function makes the next request of its attack."""
    unknown = {f"unknown{n}": n for n in range(50)}
    charset = "application/json; charset=" + " " * 1600 + 'x"x'
    deep = b"[" + b"[" * 3_000_000 + b"]" * 3_000_000 + b"]"
    fixed = {
        "gaps": _preview(GAPS, dst_gap="skip"),
        "counted": _preview(COUNTED),
        "places": _preview(PLACES, count=1000),
        "content type": Request("POST", "/api/v1/schedules/preview", b"{}", headers=(("Content-Type", charset),)),
        "list paused": _listed("status=paused"),
        "list completed": _listed("status=completed&limit=1000"),
        "list cancelled": _listed("status=cancelled&name=nothing"),
        "list by name": _listed("name=nothing"),
        "list by label": _listed("label=" + quote("team=nobody")),
        "live": Request("GET", "/live"),
        "stats": Request("GET", "/api/v1/stats"),
        "forecast": Request("GET", "/api/v1/forecast?minutes=1440"),
        "large pages": _listed("limit=1000&payload=true&name=large"),
        "pages that nobody reads": Request("GET", "/api/v1/jobs?limit=1000&payload=true&name=large", reads=False),
        "integers": _batch(b"[" + b",".join([b"1"] * 8_000_000) + b"]"),
        "empty arrays": _batch(b"[" + b",".join([b"[]"] * 5_500_000) + b"]"),
        "deep": _batch(deep),
        "keys": _batch(b"[{" + b",".join(b'"%x":0' % n for n in range(1_300_000)) + b"}]"),
        "unknown fields": _batch(json.dumps([unknown] * 9_999).encode()),
    }
    made: dict[str, Callable[[], Request]] = {name: lambda one=one: one for name, one in fixed.items()}  # type: ignore[misc]
    return {**made, "stored rule": _stored_rule, "rules": _rules}


class Siege:
    """All attacks at once."""

    def __init__(self, port: int, *, read_key: str, write_key: str) -> None:
        self._port = port
        self._read_key = read_key
        self._write_key = write_key
        self.answers: dict[str, Counter[int]] = {}

    async def carry_out(self, chosen: Iterable[tuple[str, Callable[[], Request]]], seconds: float) -> None:
        until = time.monotonic() + seconds
        slow = [asyncio.create_task(self._knock(until)) for _ in range(100)]
        loops = [asyncio.create_task(self._repeat(name, made, until)) for name, made in chosen]
        await asyncio.gather(*loops, *slow)

    async def _repeat(self, name: str, made: Callable[[], Request], until: float) -> None:
        counted = self.answers.setdefault(name, Counter())
        while (left := until - time.monotonic()) > 0:
            request = made()
            try:
                async with asyncio.timeout(min(left, _PATIENCE)):
                    counted[await self._ask(request)] += 1
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                counted[0] += 1
            if request.writes:
                # A pause, because stored jobs stay: a siege of minutes must not fill the disk.
                await asyncio.sleep(1.0)

    async def _ask(self, request: Request) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(request.encoded(self._write_key if request.writes else self._read_key))
            await writer.drain()
            if not request.reads:
                # The answer stays unread until the timeout.
                await asyncio.sleep(_PATIENCE)
            status = int((await reader.readline() or b"HTTP/1.1 0").split()[1])
            while await reader.read(1 << 20):
                pass
            return status
        finally:
            writer.transport.abort()

    async def _knock(self, until: float) -> None:
        """Sends a head that never ends, without any key."""
        while time.monotonic() < until:
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                    try:
                        writer.write(b"GET / HTTP/1.1\r\nX: ")
                        await reader.read()
                    finally:
                        writer.transport.abort()
            except (OSError, TimeoutError):
                continue


def main() -> None:
    port, seconds = int(sys.argv[1]), float(sys.argv[2])
    made = attacks()
    # Real attackers use other machines, so making the requests must not take processor time from the server.
    os.nice(19)
    siege = Siege(port, read_key=os.environ["READ_KEY"], write_key=os.environ["WRITE_KEY"])
    print("ready", flush=True)
    sys.stdin.readline()
    asyncio.run(siege.carry_out(made.items(), seconds))
    print(json.dumps(siege.answers), flush=True)


if __name__ == "__main__":
    main()
