"""etcd: members are keys under a lease, changes are watched.

`etcd://host:2379,host2:2379?prefix=/duly` (`etcds://` for TLS; `user:password@` before the hosts). Without a prefix it
is `/duly`, and for a store in another schema x `/duly-x`. A node's entry is `<prefix>/nodes/<node id>`, bound to an
etcd lease that every pass keeps alive. `registry.py` says what follows when etcd, PostgreSQL or a node is away.

etcd's leases count whole seconds, their minimum depends on the server (1.5 election timeouts), and etcd looks for
expired ones twice per second. None of that delays a takeover: the lease in `duly.nodes` ends no later. An etcd that
restarts or elects a new leader gives every lease its full time again; that only keeps an entry longer.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from typing import Any
from uuid import UUID

from duly.addresses import ServerAddress
from duly.cluster.coordinator import TermListener
from duly.cluster.etcd_gateway import EtcdGateway
from duly.cluster.registry import RegistryCoordinator, default_path, node_id_of
from duly.errors import CoordinatorUnavailable, DulyError
from duly.store.pool import Pool

log = logging.getLogger("duly.cluster")


class EtcdCoordinator(RegistryCoordinator):
    def __init__(self, listener: TermListener, pool: Pool, *, address: ServerAddress, **rest: Any) -> None:
        super().__init__(listener, pool, **rest)
        self._etcd = EtcdGateway(address, patience=self._lease / 2)
        self._prefix = address.options.get("prefix", default_path(pool.schema)).rstrip("/") + "/nodes/"
        self._info["registry_path"] = self._prefix
        self._lease_id: str | None = None
        self._granted = self._lease
        self._watching: asyncio.Task[None] | None = None

    @property
    def _membership_seconds(self) -> float:
        return self._granted

    async def start(self) -> None:
        await super().start()
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch_members(), name="duly-etcd-watch")

    async def _enter(self) -> None:
        self._lease_id = None
        lease_id, self._granted = await self._etcd.grant(math.ceil(self._lease))
        await self._etcd.put(f"{self._prefix}{self.node_id}", self._name, lease_id=lease_id)
        self._lease_id = lease_id

    async def _members(self) -> frozenset[UUID]:
        if self._lease_id is None or not await self._etcd.keep_alive(self._lease_id):
            return frozenset()
        keys = await self._etcd.keys(self._prefix)
        return frozenset(node for key in keys if (node := node_id_of(key.removeprefix(self._prefix))) is not None)

    async def _depart(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            self._watching = None
        lease_id, self._lease_id = self._lease_id, None
        try:
            if lease_id is not None:
                await self._etcd.revoke(lease_id)
        except DulyError as error:
            log.warning("could not leave etcd, which will forget this node by itself: %s", error)
        finally:
            await self._etcd.close()

    async def _watch_members(self) -> None:
        """Triggers a pass when the members change; without it a pass comes every third of the lease."""
        pause = self.backoff[0]
        while True:
            try:
                await self._etcd.watch(self._prefix, self.wake)
                pause = self.backoff[0]
            except CoordinatorUnavailable:
                # The passes log it.
                pause = min(self.backoff[1], pause * 2)
            except DulyError as error:
                log.warning("etcd does not let this node watch its members: %s", error)
                pause = self.backoff[1]
            await asyncio.sleep(pause * random.uniform(0.75, 1))  # noqa: S311
