"""A pool that stops before one of its statements until the test has done something else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg

from duly.store.pool import Pool, Querier

T = TypeVar("T")


class HeldPool(Pool):
    """Waits for `meanwhile` before statement number `hold_before`, counted from 1. A commit counts as a statement."""

    hold_before = 0
    meanwhile: Callable[[], Awaitable[None]]
    statements = 0

    async def hold(self) -> None:
        self.statements += 1
        if self.statements == self.hold_before:
            await self.meanwhile()

    async def fetch(self, name: str, *args: Any) -> list[asyncpg.Record]:
        await self.hold()
        return await super().fetch(name, *args)

    async def row(self, name: str, *args: Any) -> asyncpg.Record | None:
        await self.hold()
        return await super().row(name, *args)

    async def together(self, work: Callable[[Querier], Awaitable[T]]) -> T:
        async def held(within: Querier) -> T:
            result = await work(_HeldWithin(within, self))  # type: ignore[arg-type]
            await self.hold()  # before the commit
            return result

        return await super().together(held)


class _HeldWithin:
    can_copy = False

    def __init__(self, within: Querier, pool: HeldPool) -> None:
        self._within = within
        self._pool = pool

    async def fetch(self, name: str, *args: Any) -> list[asyncpg.Record]:
        await self._pool.hold()
        return await self._within.fetch(name, *args)

    async def row(self, name: str, *args: Any) -> asyncpg.Record | None:
        await self._pool.hold()
        return await self._within.row(name, *args)
