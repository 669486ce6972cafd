"""The sink: a separate process that no fault touches, and the only witness of what handlers really did.

The sink syncs every word to its disk before it answers. It is also a downstream that fences, as the documentation
advises: it remembers the greatest token of each run, whatever the word, and refuses the effect of a smaller one.
Attempts are not compared, because a redrive restarts them.

Requests and answers are JSON, one document per line. A call that is repeated because its answer was lost has the same
`execution` and `word` and is recorded once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FIELDS = ("word", "job", "job_id", "run_id", "scheduled_at", "attempt", "token", "worker")
# Further fields of a record: the execution, and how it ended by its own account.
_MORE = ("execution", "note")


@dataclass
class Sink:
    """`record` returns when the line is on the disk. Lines that arrive during one sync are written by the next."""

    path: Path
    _number: int = 0
    _newest: dict[str, str] = field(default_factory=dict)
    _known: dict[tuple[str, str], asyncio.Future[bool]] = field(default_factory=dict)
    _waiting: list[tuple[str, asyncio.Future[bool], bool]] = field(default_factory=list)
    _gathered: asyncio.Event = field(default_factory=asyncio.Event)

    async def record(self, said: dict[str, Any]) -> bool:
        key = (str(said["execution"]), str(said["word"]))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = asyncio.get_running_loop().create_future()
            accepted = self._judge(said)
            self._number += 1
            line = {"n": self._number, "at": time.time(), **{name: said[name] for name in _FIELDS}}
            line["accepted"] = accepted
            line |= {name: said.get(name) for name in _MORE}
            self._waiting.append((json.dumps(line), known, accepted))
            self._gathered.set()
        return await asyncio.shield(known)

    def _judge(self, said: dict[str, Any]) -> bool:
        run_id, token = str(said["run_id"]), str(said["token"])
        newest = self._newest.get(run_id)
        if newest is None or token > newest:
            self._newest[run_id] = newest = token
        return token == newest

    async def write(self) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            while True:
                await self._gathered.wait()
                self._gathered.clear()
                batch, self._waiting = self._waiting, []
                file.write("".join(f"{line}\n" for line, _, _ in batch))
                await asyncio.to_thread(_sync, file)
                for _, answer, accepted in batch:
                    answer.set_result(accepted)


# Many handlers call at once. A Unix socket with a full backlog refuses callers; asyncio mistakes that for a connection.
_BACKLOG = 1024


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


async def _serve(sink: Sink, address: str) -> None:
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                accepted = await sink.record(json.loads(line))
                writer.write(json.dumps({"accepted": accepted}).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            # The caller is gone, perhaps in the middle of a line.
            return
        finally:
            writer.close()

    kind, _, place = address.partition("://")
    if kind == "unix":
        server = await asyncio.start_unix_server(converse, place, backlog=_BACKLOG)
        os.chmod(place, 0o777)
    else:
        host, _, port = place.rpartition(":")
        server = await asyncio.start_server(converse, host, int(port), backlog=_BACKLOG)
        place = f"{host}:{server.sockets[0].getsockname()[1]}"
    writing = asyncio.create_task(sink.write())
    print(f"{kind}://{place}", flush=True)
    async with server:
        await writing


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--record", type=Path, required=True, help="the file to write to")
    options.add_argument("--listen", required=True, help="tcp://HOST:PORT (0: any) or unix:///PATH")
    given = options.parse_args()
    asyncio.run(_serve(Sink(given.record), given.listen))


if __name__ == "__main__":
    main()
