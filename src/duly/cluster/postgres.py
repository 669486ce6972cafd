"""The default coordinator: lease rows in PostgreSQL, so it works through a pooler and needs nothing else.

One row per node in `duly.nodes` is its lease; one row per shard names its leader and epoch. A shard is taken when it is
free or when its leader's lease has run out. `member.py` describes a pass, and what follows when it fails.

| what happens | what follows |
| --- | --- |
| a leader is killed or stopped | its shards are taken when its lease ends; the others know that moment and look then |
| PostgreSQL is away | leaders step down when their lease is nearly up; when it is back they go on by themselves |
"""

from __future__ import annotations

from duly.cluster.member import MemberCoordinator
from duly.store import cluster as rows


class PostgresCoordinator(MemberCoordinator):
    async def _attend(self) -> rows.View | None:
        return await self._beat()

    async def _take(self, shards: list[int], epochs: list[int]) -> dict[int, int]:
        return await rows.acquire(self._pool, node_id=self.node_id, shards=shards, epochs=epochs)
