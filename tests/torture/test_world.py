"""Tests of the torture's world: it starts, each fault has an effect and is healed, and nothing is left behind.

Each fault is injected into a real world, its effect is observed from outside, the fault is healed, and a submitted job
must run. A fault without effect would make every torture pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import asyncpg
import httpx
import pytest
import pytest_asyncio

from harness.pids import children_of
from harness.waiting import eventually
from torture.faults import FAULTS, Fault, Planned, Sort, inject_all, open_record, plan
from torture.world import Node, World, network
from torture.world.clock import Clock, library
from torture.world.network import Network, make_socket
from torture.world.proxy import Place
from torture.world.registry import missing

T = TypeVar("T")

TESTS = Path(__file__).parents[1]
SILENCE = 0.6

pytestmark = pytest.mark.asyncio(loop_scope="module")


def make_world(folder: Path, **settings: Any) -> World:
    return World(
        folder,
        seed=1,
        launcher=[sys.executable, "-m", "duly.cli"],
        environment={
            "PYTHONPATH": str(TESTS / "harness"),
            "SINK": str(folder / "sink"),
            "DULY_LEADER_LEASE_SECONDS": "2",
            "DULY_WORKER_LEASE_SECONDS": "3",
            "DULY_SHARDS": "8",
        },
        worker_arguments=["--app", "sink_app:app", "--quiet"],
        **settings,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A world in namespaces, with a synchronous standby."""
    if not network.allowed():
        pytest.skip("no network namespaces here: run as root, with iproute2 (scripts/test-services)")
    async for world in _watched(make_world(tmp_path_factory.mktemp("namespaces"), namespaces=True)):
        yield world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A small world without namespaces that elects by etcd, for the faults that the other world cannot show."""
    if reason := missing("etcd"):
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("plain")
    settings: dict[str, Any] = {"coordinator": "etcd", "standby": "none", "schedulers": 2, "workers": 1}
    async for world in _watched(make_world(folder, namespaces=False, **settings)):
        yield world


async def _watched(world: World) -> AsyncIterator[World]:
    """Enters the world and checks at its end that nothing of it is left."""
    before = set(network.leftovers(os.getpid()))
    async with world:
        its_own = set(network.leftovers(os.getpid())) - before
        pids = [server.pid for server in world.database.servers] + [node.pid for node in world.nodes.values()]
        assert its_own
        yield world
    assert its_own.isdisjoint(network.leftovers(os.getpid()))
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def submit(world: World) -> str:
    async with httpx.AsyncClient(base_url=world.url, timeout=3) as client:
        answer = await client.post("/api/v1/jobs", json={"name": "probe", "handler": "record"})
        answer.raise_for_status()
        return str(answer.json()["job_id"])


async def see_it_work(world: World) -> None:
    """Submits a job over the API and waits until it has run, and until the cluster is complete."""
    started: str | None = None

    async def ran() -> bool:
        nonlocal started
        try:
            started = started or await submit(world)
            async with httpx.AsyncClient(base_url=world.url, timeout=3) as client:
                runs = (await client.get(f"/api/v1/jobs/{started}/runs")).json()["items"]
        except (httpx.HTTPError, KeyError):
            return False
        return bool(runs) and runs[0]["status"] == "succeeded"

    await eventually(ran, seconds=40)
    await world.until_ready(40)


async def ask(node: Node, seconds: float = SILENCE) -> float:
    """Seconds that PostgreSQL takes to answer a minimal request from this node's namespace through its proxy."""
    began = time.monotonic()
    line = make_socket(node.namespace)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            await loop.sock_connect(line, (node.proxy.host, node.proxy.port))
            await loop.sock_sendall(line, b"\0\0\0\x08\x04\xd2\x16\x2f")
            if not await loop.sock_recv(line, 1):
                raise ConnectionResetError
    finally:
        line.close()
    return time.monotonic() - began


async def is_silent(node: Node) -> None:
    with pytest.raises(TimeoutError):
        await ask(node)


class Choosing(Random):
    """Chooses what the test wants, if it is among the options."""

    def __init__(self, *wanted: object) -> None:
        super().__init__(1)
        self._wanted = wanted

    def choice(self, options: Sequence[T]) -> T:  # type: ignore[override]
        return next((option for option in options if option in self._wanted), super().choice(options))


def state(pid: int | None) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def write(url: str, seconds: float) -> None:
    """Writes and waits for the acknowledgement; raises TimeoutError without one."""
    connection = await asyncpg.connect(url, timeout=10)
    try:
        async with asyncio.timeout(seconds):
            await connection.execute("create table if not exists public.scratch (n int)")
            await connection.execute("insert into public.scratch values (1)")
    finally:
        connection.terminate()


# The effect of each fault, as seen from outside while it lasts.


async def _gone(world: World, fault: Fault) -> None:
    assert not world.nodes[fault.target].alive()


async def _all_gone(world: World, fault: Fault) -> None:
    assert [node.name for node in world.of_kind("worker") if node.alive()] == []


async def _stopped(world: World, fault: Fault) -> None:
    await eventually(lambda: state(world.nodes[fault.target].pid) == "T")


async def _restarted(world: World, fault: Fault) -> None:
    assert sorted(fault.details["order"]) == [node.name for node in world.of_kind("scheduler")]
    assert all(node.alive() and node.starts > 1 for node in world.of_kind("scheduler"))


async def _silent(world: World, fault: Fault) -> None:
    await is_silent(world.nodes[fault.target])


async def _told(world: World, fault: Fault) -> None:
    """Connecting fails at once, not by a timeout."""
    with pytest.raises(OSError, match=r"reset|unreachable|Connect call failed|^$") as caught:
        await ask(world.nodes[fault.target], seconds=5)
    assert not isinstance(caught.value, TimeoutError)


async def _now_and_then(world: World, fault: Fault) -> None:
    seen = set()

    async def both() -> bool:
        try:
            await ask(world.nodes[fault.target], seconds=0.5)  # a lost packet is sent again after a second
            seen.add("answer")
        except TimeoutError:
            seen.add("silence")
        return len(seen) == 2

    await eventually(both, seconds=20)


async def _slow(world: World, fault: Fault) -> None:
    # With jitter, each way takes at least half of the drawn delay.
    assert await ask(world.nodes[fault.target], seconds=20) >= fault.details["seconds"]


async def _stalls(world: World, fault: Fault) -> None:
    node = world.nodes[fault.target]
    before = node.proxy.stalled  # slowness alone proves nothing: a busy machine is slow too

    async def stalled() -> bool:
        return await ask(node, seconds=20) >= 0.2 and node.proxy.stalled > before

    await eventually(stalled, seconds=30)


async def _was_connected(world: World, fault: Fault) -> None:
    assert fault.details["connections"] > 0


async def _struck(world: World, fault: Fault) -> None:
    """The fault strikes at a statement that the API sends for a submitted job."""

    async def strikes() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            await submit(world)
        return bool(fault._strike.struck)  # type: ignore[attr-defined]

    await eventually(strikes, seconds=30)


async def _no_api(world: World, fault: Fault) -> None:
    async with httpx.AsyncClient(timeout=SILENCE) as client:
        with pytest.raises(httpx.TimeoutException):
            await client.get(f"{world.url}/healthz")


async def _no_primary(world: World, fault: Fault) -> None:
    assert not world.database.primary.alive()
    await _told_to(world, "worker-1")


async def _told_to(world: World, name: str) -> None:
    with pytest.raises(ConnectionError):
        await ask(world.nodes[name], seconds=5)


async def _one_less(world: World, fault: Fault) -> None:
    log = world.database.primary.log
    await eventually(lambda: f"(PID {fault.details['pid']}) was terminated by signal 9" in log.read_text())


async def _ended(world: World, fault: Fault) -> None:
    assert fault.details["sessions"] > 0
    # The sessions get a signal and end when they process it.
    log = world.database.primary.log
    await eventually(lambda: "due to administrator command" in log.read_text())


async def _silent_primary(world: World, fault: Fault) -> None:
    await is_silent(world.nodes["worker-1"])


async def _no_room(world: World, fault: Fault) -> None:
    with pytest.raises(asyncpg.TooManyConnectionsError):
        await asyncpg.connect(world.database.owner_url, timeout=10)
    assert await world.database.primary.answers()  # the harness has reserved connections
    assert fault.details["taken"] > 50


async def _locked(world: World, fault: Fault) -> None:
    """The locked jobs cannot be locked again; new jobs run."""
    assert fault.details["jobs"] > 0
    async with world.database.primary.session("duly") as connection:
        with pytest.raises(asyncpg.LockNotAvailableError):
            await connection.execute("select from duly.jobs for update nowait")
    await see_it_work(world)


async def _waits(world: World, fault: Fault) -> None:
    """A writer of the table waits for the stranger's lock."""
    async with world.database.primary.session("duly") as connection:
        await connection.execute("set lock_timeout = '50ms'")
        await connection.execute("begin")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await connection.execute(f"lock table duly.{fault.details['table']} in row exclusive mode")


async def _works_beside_it(world: World, fault: Fault) -> None:
    """Jobs run while the stranger's transaction is open."""
    await see_it_work(world)


async def _dumped(world: World, fault: Fault) -> None:
    await eventually(lambda: fault.details["dumps"] > 0, seconds=60)
    await see_it_work(world)


async def _notifies_nobody(world: World, fault: Fault) -> None:
    async with world.database.primary.session("duly") as connection:
        with pytest.raises(asyncpg.ProgramLimitExceededError):
            await connection.execute("select pg_notify('duly_stranger', repeat('y', 7900))")


async def _cancelled(world: World, fault: Fault) -> None:
    await eventually(lambda: fault.details["cancelled"] > 3, seconds=30)


async def _not_allowed(world: World, fault: Fault) -> None:
    connection = await asyncpg.connect(world.database.owner_url, timeout=10)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("insert into duly.runs select * from duly.runs where false")
    finally:
        connection.terminate()


async def _has_joined(world: World, fault: Fault) -> None:
    """The other application's worker has joined, and jobs run all the same."""

    async def joined() -> bool:
        async with world.database.primary.session("duly") as connection:
            return bool(
                await connection.fetchval(
                    "select exists (select from duly.nodes where info -> 'tasks' ? 'quite_another_task')"
                )
            )

    await eventually(joined, seconds=30)
    await see_it_work(world)


async def _replaced(world: World, fault: Fault) -> None:
    """Processes of a supervisor take part; one was killed, and the supervisor has two again."""

    async def joined() -> bool:
        async with world.database.primary.session("duly") as connection:
            statement = "select count(*) from duly.nodes where kind = 'worker' and lease_until > duly.now()"
            return int(await connection.fetchval(statement)) > len(world.of_kind("worker"))

    await eventually(joined, seconds=30)
    await eventually(lambda: fault.details["killed"] > 0, seconds=60)
    await eventually(lambda: len(children_of(fault.details["pid"])) >= 2)
    await see_it_work(world)


async def _deployed(world: World, fault: Fault) -> None:
    """The shop's jobs fire, and one of its workers was restarted."""

    async def fires() -> bool:
        async with world.database.primary.session("duly") as connection:
            tick = "select exists (select from duly.jobs where dedupe_key = 'declared:shop_tick' and run_count > 0)"
            return bool(await connection.fetchval(tick))

    await eventually(fires, seconds=30)
    await eventually(lambda: fault.details["restarts"] > 0, seconds=60)
    await see_it_work(world)


async def _full(world: World, fault: Fault) -> None:
    """The log cannot grow, so the server goes down. A write shows it, since the server may still be going down."""

    async def refused() -> bool:
        try:
            await write(world.database.owner_url, 1)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return True
        return False

    await eventually(refused, seconds=20)


async def _other_primary(world: World, fault: Fault) -> None:
    assert world.database.primary.name == fault.details["to"] != fault.details["from"]
    assert world.database.old_primary_alive == (fault.kind == "promotion")
    await write(world.database.owner_url, 20)


async def _nothing_acknowledged(world: World, fault: Fault) -> None:
    with pytest.raises(TimeoutError):
        await write(world.database.owner_url, SILENCE)


async def _wrong_time(world: World, fault: Fault) -> None:
    async def shifted() -> bool:
        async with httpx.AsyncClient(timeout=3) as client:
            answer = await client.get(f"{world.url}/healthz")
        said = parsedate_to_datetime(answer.headers["date"]).timestamp()
        return bool(abs(said - time.time() - fault.details["seconds"]) < 30)

    await eventually(shifted)


async def _no_registry(world: World, fault: Fault) -> None:
    assert world.registry is not None
    assert not world.registry.alive()


async def _silent_registry(world: World, fault: Fault) -> None:
    proxy = world.nodes["scheduler-1"].registry_proxy
    assert proxy is not None
    async with httpx.AsyncClient(timeout=SILENCE) as client:
        with pytest.raises(httpx.TimeoutException):
            await client.get(f"http://{proxy.host}:{proxy.port}/version")


Felt = Callable[[World, Fault], Awaitable[None]]

#: Kind, target, the fault's random choices, the check of its effect.
IN_NAMESPACES: list[tuple[str, str, tuple[object, ...], Felt]] = [
    ("kill", "scheduler-2", (), _gone),
    ("kill-many", "workers", (), _all_gone),
    ("pause", "worker-2", (), _stopped),
    ("rolling-restart", "schedulers", (), _restarted),
    ("partition", "scheduler-1", (), _silent),
    ("partition-one-way", "scheduler-2", ("sent",), _silent),
    ("partition-one-way", "worker-1", ("received",), _silent),
    ("unplug", "worker-3", (), _told),
    ("flapping", "scheduler-3", (), _now_and_then),
    ("delay", "worker-1", (), _slow),
    ("loss", "scheduler-1", (), _stalls),
    ("half-open", "worker-2", ("to server",), _silent),
    ("half-open", "worker-3", ("to client",), _silent),
    ("refuse", "scheduler-3", (), _told),
    ("reset", "worker-1", (), _was_connected),
    ("reset-in-batch", "api-1", (20,), _struck),
    ("cut-after-commit", "api-1", ("swallow",), _struck),
    ("cut-after-commit", "api-1", ("sever",), _struck),
    ("api-partition", "api-1", ("held",), _no_api),
    ("postgres-crash", "primary", (), _no_primary),
    ("kill-postmaster", "primary", (), _no_primary),
    ("kill-backend", "primary", (), _one_less),
    ("end-backends", "primary", (), _ended),
    ("postgres-freeze", "primary", (), _silent_primary),
    ("database-partition", "primary", ("both",), _silent_primary),
    ("connection-storm", "primary", (), _no_room),
    ("locked-jobs", "primary", (20,), _locked),
    ("table-lock", "primary", ("runs", "share"), _waits),
    ("create-index", "primary", ("history",), _waits),
    ("report", "primary", (), _works_beside_it),
    ("dump", "primary", (), _dumped),
    ("open-submit", "primary", (), _works_beside_it),
    ("stuck-listener", "primary", (), _notifies_nobody),
    ("cancelled-statements", "primary", (), _cancelled),
    ("revoked-grant", "primary", ("insert", "runs"), _not_allowed),
    ("other-app", "workers", (), _has_joined),
    ("worn-workers", "workers", (), _replaced),
    ("deploys", "shop", (), _deployed),
    ("disk-full", "primary", ("log",), _full),
    ("promotion", "standby", (), _other_primary),
    ("failover", "standby", (), _other_primary),
    ("standby-crash", "standby", (), _nothing_acknowledged),
    ("replication-cut", "standby", ("held",), _nothing_acknowledged),
    ("clock-step", "api-1", (3600.0,), _wrong_time),
]
AS_PROCESSES: list[tuple[str, str, tuple[object, ...], Felt]] = [
    ("kill", "scheduler-1", (), _gone),
    ("partition", "worker-1", (), _silent),
    ("partition-one-way", "scheduler-1", ("received",), _silent),
    ("postgres-crash", "primary", (), _no_primary),
    ("registry-kill", "registry", (), _no_registry),
    ("registry-emptied", "registry", (), _no_registry),
    ("registry-pause", "registry", (), _silent_registry),
    ("registry-partition", "scheduler-1", ("held",), _silent_registry),
]


def _name(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else getattr(value, "__name__", str(value)).lstrip("_")


async def see_fault(world: World, kind: str, target: str, dice: Sequence[object], felt: Felt) -> None:
    fault = FAULTS[kind](target)
    assert target in FAULTS[kind].targets(Sort.of(world))
    if kind == "locked-jobs":
        await submit(world)  # there must be a job to lock
    try:
        await fault.inject(world, Choosing(*dice))
        await felt(world, fault)
    finally:
        await fault.heal(world)
    await see_it_work(world)


@pytest.mark.parametrize(("kind", "target", "dice", "felt"), IN_NAMESPACES, ids=_name)
async def test_a_fault_is_felt_and_after_it_jobs_run_again(
    world: World, kind: str, target: str, dice: tuple[object, ...], felt: Felt
) -> None:
    await see_fault(world, kind, target, dice, felt)


@pytest.mark.parametrize(("kind", "target", "dice", "felt"), AS_PROCESSES, ids=_name)
async def test_without_namespaces_a_fault_is_felt_too(
    plain: World, kind: str, target: str, dice: tuple[object, ...], felt: Felt
) -> None:
    await see_fault(plain, kind, target, dice, felt)


async def test_healing_makes_good_whatever_was_done(world: World) -> None:
    for kind, target in (
        ("kill", "worker-1"), ("pause", "scheduler-1"), ("partition", "scheduler-2"), ("clock-step", "worker-2"),
        ("half-open", "worker-3"), ("api-partition", "api-1"), ("connection-storm", "primary"),
        ("promotion", "standby"),
    ):  # fmt: skip
        await FAULTS[kind](target).inject(world, Choosing("held", "both"))
    await world.database.crash()
    await world.heal()
    await see_it_work(world)
    assert world.database.old_primary is None
    assert await world.database.standby_ready()
    assert all(node.clock.offset == 0 and not node.stopped for node in world.nodes.values())


async def test_a_promoted_standby_gets_new_connections_and_the_old_primary_acknowledges_nothing(world: World) -> None:
    proxy = world.nodes["worker-1"].proxy
    await write(world.database.owner_url, 20)
    old = await _through(world, "worker-1")
    primary = world.database.primary.place.host
    fault = FAULTS["promotion"]("standby")
    await fault.inject(world, Random(1))
    new = await _through(world, "worker-1")
    try:
        assert await old.fetchval("select host(inet_server_addr())") == primary
        assert await new.fetchval("select host(inet_server_addr())") == world.database.primary.place.host != primary
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SILENCE):
                await old.execute("insert into public.scratch values (404)")
        await new.execute("insert into public.scratch values (200)")
        before = proxy.accepted
        await fault.heal(world)
        # The old primary has ended, and its connections with it.
        await eventually(old.is_closed)
        assert await new.fetchval("select array_agg(distinct n) from public.scratch where n > 100") == [200]
        assert proxy.accepted >= before
    finally:
        await fault.heal(world)
        old.terminate()
        new.terminate()
    await see_it_work(world)


async def _through(world: World, name: str) -> asyncpg.Connection[Any]:
    """A new session through a node's proxy."""
    node = world.nodes[name]
    way = world._open(Place(None, "127.0.0.1", 0), Place(node.namespace, node.proxy.host, node.proxy.port), "raw")
    return await asyncpg.connect(f"postgresql://duly@127.0.0.1:{way.port}/duly?sslmode=disable", timeout=10)


@pytest.mark.parametrize(("kind", "expected"), [("swallow", 1), ("cut", 0)])
async def test_a_struck_statement_is_carried_out_or_not_as_it_was_armed(world: World, kind: Any, expected: int) -> None:
    proxy = world.nodes["scheduler-1"].proxy
    connection = await _through(world, "scheduler-1")
    try:
        await connection.execute("create table if not exists public.struck (kind text)")
        await connection.execute("delete from public.struck")
        armed = proxy.strike(kind, "insert into public.struck", after=3)
        with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
            await connection.execute("insert into public.struck values ($1)", kind)
        assert armed.struck == ["insert into public.struck values ($1)"]
    finally:
        proxy.passing()
        connection.terminate()
    async with world.database.primary.session("duly") as seen:
        assert await seen.fetchval("select count(*) from public.struck") == expected


async def test_a_cable_can_fail_in_one_direction_alone() -> None:
    if not network.allowed():
        pytest.skip("no network namespaces here: run as root, with iproute2 (scripts/test-services)")
    net = Network(namespaces=True)
    try:
        net.start()
        here, there = net.add("here"), net.add("there")
        from_here, from_there = _datagrams(here, net.host("here")), _datagrams(there, net.host("there"))

        async def arrives(sender: Any, receiver: Any) -> bool:
            # Several datagrams: the first may be lost to address resolution.
            for _ in range(3):
                with contextlib.suppress(OSError):
                    sender.sendto(b"?", receiver.getsockname())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    return bool(await asyncio.get_running_loop().sock_recv(receiver, 1))
            return False

        def drain() -> None:
            for line in (from_here, from_there):
                with contextlib.suppress(BlockingIOError):
                    while line.recv(1):
                        pass

        for sends, receives in ((True, True), (False, True), (True, False), (False, False)):
            net.mend_all()
            await eventually(lambda: arrives(from_here, from_there))
            await eventually(lambda: arrives(from_there, from_here))
            await asyncio.sleep(0.05)
            drain()
            net.partition("here", sends=not sends, receives=not receives)
            assert await arrives(from_here, from_there) == sends
            assert await arrives(from_there, from_here) == receives
            drain()
        for line in (from_here, from_there):
            line.close()
    finally:
        net.close()


def _datagrams(namespace: str | None, host: str) -> Any:
    import socket

    with network.entered(namespace):
        line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    line.setblocking(False)
    line.bind((host, 0))
    return line


async def test_a_port_that_was_exposed_is_reached_by_workers_and_by_no_fault(world: World) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"!")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await world.expose(port)
    fault = FAULTS["partition"]("worker-1")
    await fault.inject(world, Random(1))
    try:
        line = make_socket(world.nodes["worker-1"].namespace)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(10):
            await loop.sock_connect(line, ("127.0.0.1", port))
            assert await loop.sock_recv(line, 1) == b"!"
        line.close()
    finally:
        await fault.heal(world)
        server.close()
    await see_it_work(world)


async def test_a_node_that_ends_by_itself_is_started_again_and_noted(world: World) -> None:
    node = world.nodes["worker-2"]
    assert node.pid is not None
    world.exits.clear()
    os.kill(node.pid, signal.SIGABRT)  # not through the world
    await eventually(lambda: bool(world.exits))
    assert (world.exits[0]["name"], world.exits[0]["code"]) == ("worker-2", -signal.SIGABRT)
    await see_it_work(world)
    assert node.alive()
    assert next(one for one in world.processes() if one["name"] == "worker-2")["rss_kb"]


async def test_planned_faults_are_carried_out_healed_and_written_down(world: World, tmp_path: Path) -> None:
    kinds = ("kill", "pause", "partition", "half-open", "reset", "clock-step")
    planned = plan(Random(3), 4.0, world=world, rate=2.0, kinds=kinds)
    with open_record(tmp_path / "faults.jsonl") as record:
        await inject_all(world, planned, record)
    lines = [httpx.Response(200, content=line).json() for line in (tmp_path / "faults.jsonl").read_text().splitlines()]
    assert sorted(line["n"] for line in lines) == list(range(1, len(planned) + 1))
    for line in lines:
        each = planned[line["n"] - 1]
        assert (line["kind"], line["target"]) == (each.fault.kind, each.fault.target)
        assert line["ended"] - line["begun"] >= each.duration or "skipped" in line["details"]
        assert "trouble" not in line["details"]
    await world.heal()
    await see_it_work(world)


async def test_faults_that_are_broken_off_are_healed_and_written_down(world: World) -> None:
    lines: list[dict[str, Any]] = []
    fault, never = FAULTS["pause"]("scheduler-1"), FAULTS["kill"]("scheduler-2")
    going = asyncio.create_task(inject_all(world, [Planned(0, fault, 60), Planned(60, never, 1)], lines.append))
    await eventually(lambda: world.nodes["scheduler-1"].stopped)
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert [line["kind"] for line in lines] == ["pause"]
    assert state(world.nodes["scheduler-1"].pid) != "T"


_SLEEPER = """
import sys, threading, time
while True:
    wall, began = time.time(), time.monotonic()
    time.sleep(0.05)
    threading.Event().wait(0.05)
    print(wall, time.monotonic() - began, flush=True)
"""


async def test_a_clock_is_set_while_its_process_runs_and_pauses_stay_as_long_as_they_were(tmp_path: Path) -> None:
    if (preload := library()) is None:
        pytest.skip("libfaketime is not installed: run scripts/test-services as root")
    clock = Clock(tmp_path / "clock", preload)
    sleeper = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SLEEPER, env=clock.environment(os.environ), stdout=asyncio.subprocess.PIPE
    )
    assert sleeper.stdout is not None
    try:
        for step in (0.0, 3600.0, -3600.0, -5.0):
            clock.step(step)
            async with asyncio.timeout(30):
                while True:
                    wall, paused = map(float, (await sleeper.stdout.readline()).split())
                    assert 0.1 <= paused < 3
                    if abs(wall - time.time() - step) < 2:
                        break
    finally:
        sleeper.kill()
        await sleeper.communicate()


# The end of a world.

_DOOMED = """
import asyncio, sys
from pathlib import Path
from torture.test_world import make_world

async def main():
    folder = Path(sys.argv[1])
    async with make_world(folder, standby="none", schedulers=1, workers=0) as world:
        pids = [world.database.primary.pid, *(node.pid for node in world.nodes.values())]
        print(" ".join(map(str, pids)), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_run_that_is_killed_leaves_no_process_and_the_next_one_removes_the_rest(tmp_path: Path) -> None:
    doomed = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", _DOOMED, str(tmp_path)], env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert doomed.stdout is not None
        pids = (await asyncio.to_thread(doomed.stdout.readline)).split()
        assert len(pids) == 3
    finally:
        doomed.kill()
        doomed.wait()
        assert doomed.stdout is not None
        doomed.stdout.close()
    await eventually(lambda: not any(Path(f"/proc/{pid}").exists() and state(int(pid)) != "Z" for pid in pids))
    left = await asyncio.to_thread(network.leftovers, doomed.pid)
    assert left
    swept = await asyncio.to_thread(network.sweep)
    assert set(left) <= set(swept)
    assert await asyncio.to_thread(network.leftovers, doomed.pid) == []
