"""One process of a raw-SQL loop. `python -m duly.bench.raw_process drain|follow|fire`, started by the bench."""

from __future__ import annotations

import argparse
import asyncio
import os
from datetime import timedelta

from duly.bench.child import DATABASE_URL, Parent
from duly.bench.raw import Bell, RawFirer, RawWorker
from duly.bench.server import connect
from duly.process import run
from duly.store.pool import Pool


async def drain(url: str, *, connections: int) -> None:
    """Empty the queue once the bench orders it to begin."""
    parent = await Parent.connect()
    pool = await Pool.connect(url, size=1)
    opened = [await connect(url) for _ in range(connections)]
    try:
        worker = RawWorker(pool.clock)
        if await parent.released():
            async with parent.counting(lambda: worker.recorded):
                await asyncio.gather(*(worker.work(connection) for connection in opened))
                await parent.ended()
    finally:
        for connection in opened:
            await connection.close()
        await pool.close()


async def follow(url: str, *, connections: int, stamping: bool) -> None:
    """Take every run as soon as it is notified, until the bench ends it."""
    parent = await Parent.connect()
    pool = await Pool.connect(url, size=1)
    opened = [await connect(url) for _ in range(connections + 1)]
    try:
        bell = Bell()
        await bell.listen(opened[0])
        worker = RawWorker(pool.clock, bell=bell, stamping=stamping)
        loops = [asyncio.create_task(worker.work(connection)) for connection in opened[1:]]
        parent.tell(ready=True)
        async with parent.counting(lambda: worker.recorded):
            ended = asyncio.create_task(parent.ended())
            await asyncio.wait([ended, *loops], return_when=asyncio.FIRST_COMPLETED)
        for loop in loops:
            loop.cancel()
        for result in await asyncio.gather(*loops, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        parent.tell(stamps=worker.stamps)
    finally:
        for connection in opened:
            await connection.close()
        await pool.close()


async def fire(url: str, *, period: timedelta | None) -> None:
    """Fire every job that is in the store at the start, each at its time."""
    parent = await Parent.connect()
    pool = await Pool.connect(url, size=1)
    try:
        firer = RawFirer(url, pool, period=period)
        await firer.load()
        parent.tell(ready=True)
        async with parent.counting(lambda: firer.fired):
            await firer.fire()
            await parent.ended()
    finally:
        await pool.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("loop", choices=["drain", "follow", "fire"])
    parser.set_defaults(database_url=os.environ[DATABASE_URL])
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--stamping", action="store_true")
    parser.add_argument("--daily", action="store_true", help="each fired job is due again a day later")
    options = parser.parse_args()
    url = options.database_url
    if options.loop == "drain":
        run(lambda: drain(url, connections=options.connections))
    elif options.loop == "follow":
        run(lambda: follow(url, connections=options.connections, stamping=options.stamping))
    else:
        run(lambda: fire(url, period=timedelta(days=1) if options.daily else None))


if __name__ == "__main__":
    main()
