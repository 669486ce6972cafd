"""The cost of an idle process of each kind: its statements, counted on the wire, and its CPU time."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from duly.store.pool import Pool
from harness.forwarding import Armed
from harness.processes import Spawn
from harness.proxy import Proxy
from harness.servers import free_port
from harness.store import count
from harness.waiting import eventually

# Long enough to see everything that is sent every few seconds; statements sent once a minute are allowed for below.
SECONDS = 12.0


class Listening(Proxy):
    """A proxy that counts the statements that pass, by their first words."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.heard: Counter[str] = Counter()

    def fault_for(self, text: bytes) -> Armed | None:
        lines = [line.strip() for line in text.decode().splitlines()]
        self.heard[" ".join(line for line in lines if not line.startswith("--"))[:70]] += 1
        return super().fault_for(text)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# The usual leases, as users have them.
USUAL = {"DULY_LEADER_LEASE_SECONDS": "5", "DULY_WORKER_LEASE_SECONDS": "15"}


async def test_an_idle_process_sends_two_statements_a_second_and_takes_a_fiftieth_of_a_core(
    pool: Pool, database_url: str, spawn: Spawn
) -> None:
    """A scheduler of all 64 shards, a worker, and the API."""
    kinds = {"scheduler": (), "worker": (), "api": ("--port", str(free_port()))}
    with ExitStack() as stack:
        proxies = {kind: Listening(database_url) for kind in kinds}
        for proxy in proxies.values():
            stack.enter_context(proxy)
        nodes = {
            kind: spawn(kind, *arguments, settings={**USUAL, "DULY_DATABASE_URL": proxies[kind].url})
            for kind, arguments in kinds.items()
        }

        async def ready() -> bool:
            led = await count(pool, "shards", "node_id is not null") == 64
            return led and await count(pool, "nodes") >= 2 and all(proxy.heard for proxy in proxies.values())

        await eventually(ready, seconds=60)
        await asyncio.sleep(3)  # until the work of the start is over
        before = {kind: cpu_seconds(node.pid) for kind, node in nodes.items()}
        for proxy in proxies.values():
            proxy.heard.clear()
        await asyncio.sleep(SECONDS)
        heard = {kind: Counter(proxy.heard) for kind, proxy in proxies.items()}
        used = {kind: cpu_seconds(node.pid) - before[kind] for kind, node in nodes.items()}
        for kind, statements in heard.items():
            print(f"{kind}: {statements.total() / SECONDS:.2f} statements/s, {used[kind] / SECONDS:.2%} of a core")
            for statement, times in statements.most_common():
                print(f"{times:4d}  {statement}")
        for kind, statements in heard.items():
            # One round of the statements that are sent once a minute may fall into this time.
            assert statements.total() <= 2 * SECONDS + 6, kind
            assert used[kind] <= 0.02 * SECONDS, kind
        for node in nodes.values():
            node.terminate()
        for node in nodes.values():
            node.wait()
