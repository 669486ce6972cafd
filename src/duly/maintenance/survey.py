"""Counts the active jobs by what they demand of a worker, so that those that no live worker can run are named.

Nobody can ask an index for the handlers of all active jobs: an index over active jobs costs every fire an entry. So the
survey walks over all jobs in the order of their ids, one page a minute, in one statement, and keeps the counts in a
small table (`duly.demands`). 20,000 jobs are counted every minute, a million in 50 minutes. Who reads the counts looks
at the newest jobs, those due next, and the runs in the queue as well (`store/demands.py`).
"""

from __future__ import annotations

from duly.maintenance.leader import LeaderService
from duly.store import demands
from duly.store.pool import Pool

# Jobs per page.
PAGE = 20_000


class Survey(LeaderService):
    """Walks over all jobs, again and again."""

    interval = 60.0

    def __init__(self, pool: Pool, *, page: int = PAGE) -> None:
        super().__init__()
        self._pool = pool
        self._page = page

    async def work(self) -> float | None:
        if self._pool.has_step(demands.STEP):
            await demands.survey(self._pool, page=self._page)
        return None
