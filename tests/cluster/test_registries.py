"""Cases that only etcd and ZooKeeper have: several servers, logins, and servers that are away from the start."""

from __future__ import annotations

import asyncio
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import UUID

import httpx
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from duly.cluster.registry import RegistryCoordinator
from duly.cluster.zookeeper import _close
from duly.errors import ConfigError, CoordinatorUnavailable
from duly.store.cluster import View
from harness.nodes import REGISTRIES, SHARDS, Cluster
from harness.servers import SERVERS, EtcdServer, RegistryServer, Servers, free_port
from harness.waiting import eventually

MakeCluster = Callable[[RegistryServer], Cluster]


@pytest.fixture
async def make_cluster(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MakeCluster]:
    monkeypatch.chdir(tmp_path)
    made: list[Cluster] = []

    def make(server: RegistryServer) -> Cluster:
        made.append(Cluster(server.scheme, database_url, server))
        return made[-1]

    yield make
    for cluster in made:
        await cluster.close()


@pytest.mark.parametrize("name", REGISTRIES)
async def test_a_server_that_does_not_answer_is_passed_over(
    name: str, servers: Servers, make_cluster: MakeCluster
) -> None:
    server = servers.get(name)
    cluster = make_cluster(server)
    host = f"127.0.0.1:{server.port}"
    several = server.address(cluster.room).replace(host, f"127.0.0.1:{free_port()},{host}")
    one, two = await cluster.node(coordinator=several), await cluster.node(coordinator=several)
    await eventually(cluster.shared_by(one, two))


@pytest.mark.parametrize("name", REGISTRIES)
async def test_whoever_enters_waits_for_a_busy_server(name: str, servers: Servers, make_cluster: MakeCluster) -> None:
    server = servers.get(name)
    cluster = make_cluster(server)
    host = f"127.0.0.1:{server.port}"
    several = server.address(cluster.room).replace(host, f"127.0.0.1:{free_port()},{host}")
    server.pause()
    # Two thirds of the lease: longer than a node that already leads would wait.
    asyncio.get_running_loop().call_later(1.0, server.go_on)
    one = await cluster.node(coordinator=several)
    await eventually(cluster.shared_by(one))


@pytest.mark.parametrize("name", REGISTRIES)
async def test_a_registry_that_is_away_from_the_start_is_an_error_that_says_where(
    name: str, servers: Servers, make_cluster: MakeCluster
) -> None:
    cluster = make_cluster(servers.get(name))
    port = free_port()
    with pytest.raises(CoordinatorUnavailable, match=f"127.0.0.1:{port}"):
        await cluster.node(registry_port=port, notified=False)


async def forget(server: RegistryServer, room: str, node_id: UUID) -> None:
    """Removes a node's entry behind its back."""
    if server.scheme == "etcd":
        key = b64encode(f"/{room}/nodes/{node_id}".encode()).decode()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}/v3") as etcd:
            answer = await etcd.post("/kv/deleterange", json={"key": key})
            assert answer.json()["deleted"] == "1"
        return
    client = KazooClient(f"127.0.0.1:{server.port}")
    await asyncio.to_thread(client.start)
    await asyncio.to_thread(client.delete, f"/{room}/nodes/{node_id}")
    await asyncio.to_thread(client.stop)
    await asyncio.to_thread(client.close)


@pytest.mark.parametrize("name", REGISTRIES)
async def test_whoever_the_registry_has_forgotten_is_replaced_although_its_lease_stands(
    name: str, servers: Servers, make_cluster: MakeCluster
) -> None:
    cluster = make_cluster(servers.get(name))
    one, two = await cluster.node(lease=30), await cluster.node(lease=30)
    await eventually(cluster.shared_by(one, two))
    old = dict(one.coordinator.terms)
    # The node hangs, so it does not see what the others see; only the epoch keeps it from firing.
    await one.coordinator.stop()
    await forget(servers.get(name), cluster.room, one.node_id)
    await eventually(lambda: len(two.shards) == SHARDS, seconds=10)
    assert all(two.coordinator.terms[shard].epoch > term.epoch for shard, term in old.items())


@pytest.mark.parametrize("name", REGISTRIES)
async def test_a_node_that_the_registry_has_forgotten_enters_again(
    name: str, servers: Servers, make_cluster: MakeCluster
) -> None:
    cluster = make_cluster(servers.get(name))
    one = await cluster.node(lease=30)
    await eventually(cluster.shared_by(one))
    await forget(servers.get(name), cluster.room, one.node_id)
    # The watch tells the node, long before its next pass.
    await eventually(lambda: len(cluster.record.of("began")) == 2 * SHARDS, seconds=8)


@pytest.mark.parametrize("name", REGISTRIES)
async def test_whoever_enters_and_leads_between_the_two_looks_of_a_pass_is_left_alone(
    name: str, servers: Servers, make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(servers.get(name))
    beat = RegistryCoordinator._beat
    looked, go_on = asyncio.Event(), asyncio.Event()

    async def hesitant(coordinator: RegistryCoordinator) -> View | None:
        if not looked.is_set():  # the first node's first pass
            looked.set()
            await go_on.wait()
        return await beat(coordinator)

    monkeypatch.setattr(RegistryCoordinator, "_beat", hesitant)
    one = await cluster.node(lease=30)
    await looked.wait()
    two = await cluster.node(lease=30)
    await eventually(lambda: bool(two.shards))
    go_on.set()
    await eventually(cluster.shared_by(one, two))
    assert cluster.record.overlaps == []
    assert {term.epoch for node in (one, two) for term in node.coordinator.terms.values()} == {1}


async def test_a_zookeeper_client_that_died_is_replaced(servers: Servers, make_cluster: MakeCluster) -> None:
    cluster = make_cluster(servers.get("zookeeper"))
    one = await cluster.node()
    await eventually(cluster.shared_by(one))
    client = one.coordinator._client  # type: ignore[attr-defined]
    await asyncio.to_thread(client.stop)  # as if its threads had ended: it does not come back by itself
    await eventually(lambda: one.coordinator._client not in (None, client), seconds=20)  # type: ignore[attr-defined]
    await eventually(cluster.shared_by(one), seconds=20)


async def test_a_zookeeper_client_that_is_being_stopped_is_closed_when_that_is_over(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers.get("zookeeper")
    client = KazooClient(f"127.0.0.1:{server.port}")
    await asyncio.to_thread(client.start)
    close, refused = client.close, threading.Event()

    def try_to_close() -> None:
        try:
            close()
        except Exception:
            refused.set()
            raise

    monkeypatch.setattr(client, "close", try_to_close)
    server.pause()  # so that the stop, which waits for its answer, takes a while
    try:
        stopping = asyncio.create_task(asyncio.to_thread(client.stop))
        await eventually(client._stopped.is_set)
        closing = asyncio.create_task(asyncio.to_thread(_close, client))
        await eventually(refused.is_set)
    finally:
        server.go_on()
    await asyncio.gather(stopping, closing)
    assert client._connection._write_sock is None  # an open socket would be a leak


@pytest.mark.parametrize("name", REGISTRIES)
async def test_a_registry_that_comes_back_empty_is_entered_again(name: str, make_cluster: MakeCluster) -> None:
    """This is the case after a disk was lost, or with a backup that is older than these nodes."""
    if reason := SERVERS[name].missing():
        pytest.skip(reason)
    server = SERVERS[name]()
    await asyncio.to_thread(server.start)
    try:
        cluster = make_cluster(server)
        one, two = await cluster.node(), await cluster.node()
        await eventually(cluster.shared_by(one, two))
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.forget)
        await asyncio.to_thread(server.start)
        # A node that has not noticed yet still leads, so only terms that begin from now on count.
        before = len(cluster.record.of("began"))
        await eventually(lambda: len(cluster.record.of("began")) >= before + SHARDS, seconds=40)
        await eventually(cluster.shared_by(one, two), seconds=40)
        assert cluster.record.overlaps == []
        await cluster.close()
    finally:
        server.remove()


async def test_etcd_with_a_login(make_cluster: MakeCluster) -> None:
    if reason := EtcdServer.missing():
        pytest.skip(reason)
    server = EtcdServer()
    await asyncio.to_thread(server.start)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}/v3") as etcd:
            for path, body in (
                ("/auth/user/add", {"name": "root", "password": "open/sesame"}),
                ("/auth/role/add", {"name": "root"}),
                ("/auth/user/grant", {"user": "root", "role": "root"}),
                ("/auth/enable", {}),
            ):
                (await etcd.post(path, json=body)).raise_for_status()
        cluster = make_cluster(server)
        right = server.address(cluster.room).replace("://", "://root:open%2Fsesame@")
        one = await cluster.node(coordinator=right)
        await eventually(cluster.shared_by(one))
        for login in ("root:not-this@", ""):
            with pytest.raises(ConfigError, match="refused") as refused:
                await cluster.node(coordinator=server.address(cluster.room).replace("://", f"://{login}"))
            assert "not-this" not in str(refused.value)
        # A restarted etcd has forgotten the tokens it gave out.
        await asyncio.to_thread(server.stop)
        await eventually(lambda: not one.shards)
        await asyncio.to_thread(server.start)
        await eventually(cluster.shared_by(one), seconds=30)
        await cluster.close()
    finally:
        server.remove()


async def test_zookeeper_with_a_login_closes_our_nodes_to_everybody_else(
    servers: Servers, make_cluster: MakeCluster
) -> None:
    server = servers.get("zookeeper")
    cluster = make_cluster(server)
    one = await cluster.node(coordinator=server.address(cluster.room).replace("://", "://duly:sesame@"))
    await eventually(cluster.shared_by(one))
    stranger = KazooClient(f"127.0.0.1:{server.port}")
    await asyncio.to_thread(stranger.start)
    try:
        with pytest.raises(NoAuthError):
            await asyncio.to_thread(stranger.get_children, f"/{cluster.room}/nodes")
    finally:
        await asyncio.to_thread(stranger.stop)
        await asyncio.to_thread(stranger.close)
    with pytest.raises(ConfigError, match="DULY_COORDINATOR") as refused:
        await cluster.node(coordinator=server.address(cluster.room).replace("://", "://other:hush@"), notified=False)
    assert "hush" not in str(refused.value)
