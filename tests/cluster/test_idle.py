"""What a scheduler costs while it has nothing to do: counted at the wire, and by its process's own clock."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

from cluster.processes import Spawn
from duly.store.pool import Pool
from proxy import Fault, Proxy
from support import count, eventually

# Long enough to see everything that is sent every few seconds; what comes once a minute is allowed for below.
SECONDS = 12.0


class Listening(Proxy):
    """Notes every statement that passes, by its first words."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.heard: Counter[str] = Counter()

    def _fault_for(self, text: bytes) -> Fault | None:
        lines = [line.strip() for line in text.decode().splitlines()]
        self.heard[" ".join(line for line in lines if not line.startswith("--"))[:70]] += 1
        return super()._fault_for(text)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_an_idle_node_of_64_shards_sends_two_statements_a_second_and_takes_a_hundredth_of_a_core(
    pool: Pool, database_url: str, spawn: Spawn
) -> None:
    proxy = Listening(database_url)
    with proxy:
        # As users run it: with the usual leases.
        node = spawn("scheduler", settings={"DULY_DATABASE_URL": proxy.url, "DULY_LEADER_LEASE_SECONDS": "5"})

        async def led() -> bool:
            return await count(pool, "shards", "node_id is not null") == 64

        await eventually(led, seconds=60)
        await asyncio.sleep(3)  # what a start brings with it is over
        proxy.heard.clear()
        before = cpu_seconds(node.pid)
        await asyncio.sleep(SECONDS)
        used = cpu_seconds(node.pid) - before
        print(f"{proxy.heard.total() / SECONDS:.2f} statements/s, {used / SECONDS:.2%} of a core")
        for statement, times in proxy.heard.most_common():
            print(f"{times:4d}  {statement}")
        # A look of everything that comes once a minute may fall into this.
        assert proxy.heard.total() <= 2 * SECONDS + 6
        assert used <= 0.02 * SECONDS
        node.terminate()
        node.wait()
