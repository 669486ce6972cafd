"""Measures how long shards stand still when their leader is killed or leaves, and prints it as a Markdown table.

    python tests/cluster/failover_table.py --kills 30

The servers have their default settings (etcd's and ZooKeeper's own ticks), PostgreSQL has fsync on, and Duly has its
default lease of 5 s.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# ruff: noqa: E402 - it is started as a script, and its modules lie where pytest finds them
sys.path[:0] = [str(Path(__file__).parents[1])]

from cluster.failover import Blow, Pair
from duly.config import load_settings
from duly.model import DEFAULT_TENANT
from duly.operations import StoreOperations
from duly.store import embedded
from duly.store.migrate import migrate
from duly.store.pool import Pool
from harness.nodes import KINDS
from harness.processes import Spawn
from harness.servers import SERVERS

BLOWS: tuple[Blow, ...] = ("kill", "leave")


@contextmanager
def coordinator(kind: str) -> Iterator[str]:
    if kind not in SERVERS:
        yield kind
        return
    server = SERVERS[kind](quick=False)
    try:
        server.start()
        yield server.address("failover")
    finally:
        server.remove()


async def measure(kind: str, rounds: int, lease: float, folder: Path) -> dict[Blow, list[float]]:
    postgres = embedded.start(folder)
    try:
        pool = await Pool.connect(postgres.url)
        await migrate(pool)
        operations = (await StoreOperations.open(pool, load_settings(database_url=postgres.url))).for_tenant(
            DEFAULT_TENANT
        )
        (folder / "sink").touch()
        spawn = Spawn(folder, folder / "sink", postgres.url)
        with coordinator(kind) as address:
            settings = {"DULY_COORDINATOR": address, "DULY_LEADER_LEASE_SECONDS": str(lease)}
            pair = Pair(pool, operations, spawn, settings)
            dice = random.Random(1)
            waited: dict[Blow, list[float]] = {blow: [] for blow in BLOWS}
            try:
                for number in range(rounds):
                    for blow in BLOWS:
                        waited[blow].append(await pair.strike(blow, dice))
                    so_far = ", ".join(f"{blow} {times[-1]:.2f}" for blow, times in waited.items())
                    print(f"{kind} {number + 1}/{rounds}: {so_far}", file=sys.stderr, flush=True)
            finally:
                spawn.end()
        await pool.close()
        return waited
    finally:
        postgres.release()


def row(kind: str, waited: dict[Blow, list[float]]) -> str:
    cells = [kind]
    for blow in BLOWS:
        times = sorted(waited[blow])
        p95 = times[min(len(times) - 1, round(0.95 * len(times)))]
        cells += [f"{statistics.median(times):.2f}", f"{p95:.2f}", f"{times[-1]:.2f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="rounds of each kind of blow")
    parser.add_argument("--lease", type=float, default=5.0, help="seconds")
    parser.add_argument("--coordinator", choices=KINDS, action="append", help="only this one (may be repeated)")
    given = parser.parse_args()
    rows = []
    for kind in given.coordinator or KINDS:
        with tempfile.TemporaryDirectory(prefix="duly-failover-") as folder:
            rows.append(row(kind, asyncio.run(measure(kind, given.kills, given.lease, Path(folder)))))
    print("| coordinator | kill -9: median s | p95 | max | leave: median s | p95 | max |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
