"""A scheduler as users run it. `python -m duly.bench.scheduler_process`, started by the bench.

It is ready when it leads every shard and holds everything that the store has for the near future.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from duly.bench.child import DATABASE_URL, Parent
from duly.bench.server import bench_settings
from duly.bench.worker_process import profiled
from duly.node import running_scheduler
from duly.process import run
from duly.store.pool import Pool


async def schedule(url: str, *, jobs: int, ahead: float | None, profile: Path | None) -> None:
    settings = bench_settings(url)
    if ahead is not None:
        settings = settings.model_copy(update={"fire_ahead_seconds": ahead})
    parent = await Parent.connect()
    pool = await Pool.connect(url, size=settings.pool_size)
    try:
        with profiled(profile):
            async with running_scheduler(pool, settings) as node, parent.counting(lambda: node.firer.fired):
                # Jobs taken from the wheel have been fired ahead, or are about to be.
                while len(node.future) + node.firer.taken < jobs:  # noqa: ASYNC110 - there is no event to wait for
                    await asyncio.sleep(0.01)
                parent.tell(ready=True)
                await parent.ended()
    finally:
        await pool.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.set_defaults(database_url=os.environ[DATABASE_URL])
    parser.add_argument("--jobs", type=int, required=True, help="number of jobs that it must hold before it is ready")
    parser.add_argument("--ahead", type=float, help="seconds by which to fire ahead of time; default: Duly's default")
    parser.add_argument("--profile", type=Path)
    options = parser.parse_args()
    run(lambda: schedule(options.database_url, jobs=options.jobs, ahead=options.ahead, profile=options.profile))


if __name__ == "__main__":
    main()
