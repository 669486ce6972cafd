"""The server's queue of notifications, which all its databases share, fills up when one listener is stuck."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncpg
import pytest

from duly.errors import StoreUnavailable
from duly.store import embedded
from duly.store.migrate import migrate
from duly.store.pool import Pool
from harness.store import count, new_job, put


@pytest.fixture
def small_queue() -> Iterator[str]:
    """A server whose queue of notifications is as small as it may be."""
    with TemporaryDirectory(prefix="duly-notifications-") as home:
        running = embedded.start(Path(home), settings={"fsync": "off", "max_notify_queue_pages": "64"})
        yield running.url
        running.release()


async def test_a_queue_of_notifications_that_was_full_does_not_stay_so(small_queue: str) -> None:
    pool = await Pool.connect(small_queue)
    await migrate(pool)
    stuck = await asyncpg.connect(small_queue)
    await stuck.execute("listen elsewhere")
    await stuck.execute("begin")
    await stuck.execute("select 1")
    full = 0
    try:
        for full in range(200):
            await pool.query("select pg_catalog.pg_notify('elsewhere', repeat('x', 7000) || $1)", str(full))
    except StoreUnavailable:
        pass
    assert full < 199, "the queue never filled: this test would show nothing"
    # While the listener is stuck, nothing that announces itself can be stored; nothing is half done.
    with pytest.raises(StoreUnavailable, match="NOTIFY"):
        await put(pool, new_job(pool))
    assert await count(pool, "jobs") == 0
    await stuck.close()
    # By itself PostgreSQL would go on refusing every announcement.
    await put(pool, new_job(pool))
    assert (await count(pool, "jobs"), await count(pool, "runs")) == (1, 1)
    await pool.close()
