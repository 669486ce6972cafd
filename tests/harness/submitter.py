"""A web process of either version: submits jobs in transactions of its own until its standard input is closed.

Every third transaction is rolled back. Each result is one line on the standard output: `committed N`, `rolled back N`
or `refused N` with the error. The row in `public.orders` is written in the same transaction as the job.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import asyncpg

from duly import Duly

PAUSE_SECONDS = 0.01


class _RolledBack(Exception):
    pass


async def main(name: str) -> None:
    app = Duly()
    connection = await asyncpg.connect(os.environ["DULY_DATABASE_URL"])
    until_closed = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    number = 0
    while not until_closed.done():
        number += 1
        order = f"{name}-{number}"
        began = time.monotonic()
        try:
            async with connection.transaction():
                job_id = await app.submit("record", {"seconds": 0}, connection=connection, labels={"order": order})
                await connection.execute("insert into public.orders values ($1, $2)", order, job_id)
                if number % 3 == 0:
                    raise _RolledBack
        except _RolledBack:
            result = "rolled back"
        except Exception as error:  # noqa: BLE001 - whatever it is, the test must see it
            result = f"refused: {type(error).__name__}: {error}"
        else:
            result = "committed"
        print(f"{order} {time.monotonic() - began:.3f} {result}", flush=True)
        await asyncio.sleep(PAUSE_SECONDS)
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
