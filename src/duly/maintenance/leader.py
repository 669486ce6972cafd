"""The base of services that run on one node of the cluster: the leader of shard 0.

All of them are safe to run on several nodes at once, as happens for a moment when leadership moves.
"""

from __future__ import annotations

from abc import abstractmethod

from duly.service import Service

_IDLE_SECONDS = 3600.0


class LeaderService(Service):
    """A service that works while its node leads shard 0."""

    leading = False

    def lead(self, leading: bool) -> None:
        self.leading = leading
        if leading:
            self.wake()

    async def run_once(self) -> float | None:
        return await self.work() if self.leading else _IDLE_SECONDS

    @abstractmethod
    async def work(self) -> float | None:
        """Does one pass, on the leader."""
