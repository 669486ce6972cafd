"""The base of services that one node of the cluster is enough for: whoever leads shard 0 runs them.

All of them are safe to run on several nodes at once, as happens for a moment when leadership moves.
"""

from __future__ import annotations

from abc import abstractmethod

from duly.service import Service

_IDLE = 3600.0


class LeaderService(Service):
    leading = False

    def lead(self, leading: bool) -> None:
        self.leading = leading
        if leading:
            self.wake()

    async def run_once(self) -> float | None:
        return await self.work() if self.leading else _IDLE

    @abstractmethod
    async def work(self) -> float | None:
        """One pass on the leader."""
