"""From settings to the coordinator they name."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from duly.cluster.advisory import AdvisoryCoordinator
from duly.cluster.coordinator import Coordinator, TermListener
from duly.cluster.postgres import PostgresCoordinator
from duly.config import Settings
from duly.errors import MissingExtra
from duly.store.pool import Pool


def make_coordinator(
    listener: TermListener, pool: Pool, settings: Settings, *, node_id: UUID, name: str, version: str
) -> Coordinator:
    """Makes the coordinator. Reading the settings has checked them: only an extra can be missing here."""
    scheme = settings.coordinator.partition("://")[0]
    common: dict[str, Any] = {
        "node_id": node_id,
        "name": name,
        "version": version,
        "lease_seconds": settings.leader_lease_seconds,
        # All schedulers of a store must have the same: see `MemberCoordinator.start`.
        "info": {"coordinator": scheme.replace("etcds", "etcd")},
    }
    if scheme == "postgres":
        return PostgresCoordinator(listener, pool, **common)
    if scheme == "postgres-advisory":
        return AdvisoryCoordinator(listener, pool, url=settings.direct_url or pool.url, **common)
    address = settings.coordinator_address
    assert address is not None
    if scheme in ("etcd", "etcds"):
        try:
            from duly.cluster.etcd import EtcdCoordinator
        except ModuleNotFoundError as error:
            raise MissingExtra("electing leaders with etcd", "etcd") from error
        return EtcdCoordinator(listener, pool, address=address, **common)
    try:
        from duly.cluster.zookeeper import ZooKeeperCoordinator
    except ModuleNotFoundError as error:
        raise MissingExtra("electing leaders with ZooKeeper", "zookeeper") from error
    return ZooKeeperCoordinator(listener, pool, address=address, **common)
