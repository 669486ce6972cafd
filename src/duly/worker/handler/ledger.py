"""Asks the ledger for runs that start together, in one statement."""

from __future__ import annotations

import asyncio
from uuid import UUID

from duly.model import ClaimedRun
from duly.store import ledger
from duly.store.pool import Pool


class Ledger:
    """The idempotency keys of completed runs, as the store keeps them."""

    def __init__(self, pool: Pool, *, retention_seconds: float) -> None:
        self._pool = pool
        self._retention = retention_seconds
        self._asked: dict[tuple[UUID, str], asyncio.Future[bool]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    async def holds(self, run: ClaimedRun, key: str) -> bool:
        """Whether a run has already completed with this key."""
        if (answer := self._asked.get((run.job_id, key))) is None:
            if not self._asked:
                # Runs of one claim start in the same turn of the loop: the statement is sent when all have asked.
                asking = asyncio.create_task(self._ask())
                self._asking.add(asking)
                asking.add_done_callback(self._asking.discard)
            answer = self._asked[run.job_id, key] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(answer)

    async def _ask(self) -> None:
        asked, self._asked = self._asked, {}
        try:
            found = await ledger.known(self._pool, list(asked), retention_seconds=self._retention)
        except Exception as error:  # noqa: BLE001 - every run that asked gets it
            for answer in asked.values():
                answer.set_exception(error)
                answer.exception()  # marks it as seen: the run that asked may have been cancelled
        else:
            for pair, answer in asked.items():
                answer.set_result(pair in found)
