"""The world as a whole: starts its parts in order, watches and heals them, and removes them at the end."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

from harness.forwarding import LoopThread

from . import clock as clocks
from . import network as networks
from .clock import Clock
from .database import Database
from .network import Network, free_port
from .node import Kind, Node
from .proxy import Place, Proxy
from .registry import Registry

COORDINATORS = ("postgres", "postgres-advisory", "etcd", "zookeeper")
STANDBYS = ("synchronous", "asynchronous", "none")

_RESTART_SECONDS = 0.5
_SAMPLE_SECONDS = 1.0
#: A node that was asked to end and does not within this many seconds is killed, as service managers do.
PATIENCE = 40.0


class World:
    """An async context manager, to be entered in the main thread. The package's docstring describes its use."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        launcher: list[str],
        environment: dict[str, str],
        coordinator: str = "postgres",
        standby: str = "synchronous",
        namespaces: bool | None = None,
        worker_arguments: Sequence[str] = (),
        prepare: Callable[[str], Awaitable[None]] | None = None,
        schedulers: int = 3,
        workers: int = 3,
        disk_mb: int | None = 512,
        max_connections: int = 120,
    ) -> None:
        """`disk_mb`: the size of each PostgreSQL's own small disk (needs root); None: the scratch folder's disk."""
        for name, value, known in (("coordinator", coordinator, COORDINATORS), ("standby", standby, STANDBYS)):
            if value not in known:
                raise ValueError(f"{name} is {value!r}: use one of {', '.join(known)}")
        self.folder = folder.resolve()
        self.seed = seed
        self.coordinator = coordinator
        self.namespaces = networks.allowed() if namespaces is None else namespaces
        if self.namespaces and not networks.allowed():
            raise RuntimeError("namespaces=True, but none can be made here: run as root, with iproute2 installed")
        self._standby = standby
        self._launcher = launcher
        self._given = environment
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("DULY_", "PG"))},
            **environment,
        }
        self.worker_arguments = list(worker_arguments)
        self._prepare = prepare
        self._kinds: list[Kind] = [*["scheduler"] * schedulers, *["worker"] * workers, "api"]  # type: ignore[list-item]
        self._disk_mb = disk_mb if os.geteuid() == 0 else None
        self._max_connections = max_connections
        self.nodes: dict[str, Node] = {}
        self.registry: Registry | None = None
        self.database: Database
        #: The proxy between clients and the API.
        self.front: Proxy
        self.network = Network(namespaces=self.namespaces)
        #: Number of deploys of the shop (`faults/deploys.py`) so far.
        self.deploys = 0
        #: Nodes that ended by themselves: `{name, at, code}`.
        self.exits: list[dict[str, Any]] = []
        self._exposed: set[int] = set()
        self._thread = LoopThread()
        self._proxies: list[Proxy] = []
        self._spawned: list[subprocess.Popen[bytes]] = []
        self._scratch: Path | None = None
        self._watch: asyncio.Task[None] | None = None
        self._closed = False

    # State and commands.

    @property
    def url(self) -> str:
        """The API's address for clients on this machine."""
        return f"http://127.0.0.1:{self.front.port}"

    def of_kind(self, kind: Kind) -> list[Node]:
        return [node for node in self.nodes.values() if node.kind == kind]

    def lease(self, kind: str) -> float:
        """The lease in seconds, as the environment sets it: the leader's for schedulers, the worker's for others."""
        name, usual = ("LEADER", "5") if kind == "scheduler" else ("WORKER", "15")
        return float(self._given.get(f"DULY_{name}_LEASE_SECONDS", usual))

    def processes(self) -> list[dict[str, Any]]:
        """The nodes' processes, as `final.json` lists them."""
        return [
            {"name": node.name, "pid": node.pid, "alive": node.alive(), "rss_kb": [list(pair) for pair in node.rss]}
            for node in self.nodes.values()
        ]

    def logs(self) -> dict[str, str]:
        found = {name: str(node.log) for name, node in self.nodes.items()}
        found |= {server.name: str(server.log) for server in self.database.servers}
        return found | ({} if self.registry is None else {self.registry.name: str(self.registry.log)})

    async def command(self, *arguments: str) -> str:
        """Runs a command of Duly, connected directly to the present primary, and returns its output."""
        environment = {**self._environment, "DULY_DATABASE_URL": self.database.owner_url}

        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run([*self._launcher, *arguments], env=environment, cwd=self.folder, text=True,
                                  capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=120)  # fmt: skip

        done = await asyncio.to_thread(run)
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    def spawn(self, arguments: Sequence[str], log: BinaryIO, **more: str) -> subprocess.Popen[bytes]:
        """Starts a process beside the nodes, connected directly to the present primary. It is never restarted. `more`:
        variables of its environment."""
        tests = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, (self._environment.get("PYTHONPATH"), tests)))
        environment = {**self._environment, "DULY_DATABASE_URL": self.database.owner_url, "PYTHONPATH": path, **more}
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *self._launcher, *arguments], env=environment, cwd=self.folder,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        self._spawned.append(process)
        return process

    async def expose(self, port: int) -> None:
        """Makes this machine's 127.0.0.1:`port` reachable as 127.0.0.1:`port` in every worker's namespace, without
        faults."""
        self._exposed.add(port)
        for node in self.of_kind("worker"):
            self._open_way_out(node, port)

    async def ready(self) -> str | None:
        """None if the cluster's own API reports that it is complete, else what is missing."""
        if away := [node.name for node in self.nodes.values() if not node.alive()]:
            return f"{', '.join(away)} not running"
        try:
            document = await asyncio.to_thread(_get, f"{self.url}/api/v1/cluster")
        except (OSError, ValueError) as error:
            return f"the API does not answer: {error}"
        return _missing(document, len(self.of_kind("scheduler")), len(self.of_kind("worker")))

    async def until_ready(self, seconds: float = 60) -> None:
        """Waits until every node is alive and every shard is led; a timeout names what is missing."""
        deadline = time.monotonic() + seconds
        while (reason := await self.ready()) is not None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the cluster is not complete after {seconds:g} s: {reason}")
            await asyncio.sleep(0.1)

    # Start and end.

    async def __aenter__(self) -> World:
        await asyncio.to_thread(networks.sweep)
        atexit.register(self._remove)
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        self._remove()
        atexit.unregister(self._remove)

    async def _start(self) -> None:
        self._scratch = scratch = networks.scratch_folder()
        self._thread.start()
        self.network.start()
        self.database = Database(
            scratch, self.folder, self.network, self._thread, standby=self._standby, disk_mb=self._disk_mb,
            max_connections=self._max_connections,
        )  # fmt: skip
        self._proxies.append(self.database.replication)
        if self.coordinator in ("etcd", "zookeeper"):
            self.registry = Registry(self.coordinator, scratch, self.network, self.folder / f"{self.coordinator}.log")
            await self.registry.start()
        await self.database.make()
        await self.command("migrate")
        if self._prepare is not None:
            await self._prepare(self.database.admin_url)
        numbers: dict[str, int] = {}
        for kind in self._kinds:
            numbers[kind] = numbers.get(kind, 0) + 1
            self._add(kind, numbers[kind], scratch)
        self.database.when_moved(self._point)
        for port in self._exposed:
            await self.expose(port)
        for node in self.nodes.values():
            node.start()
        self._watch = asyncio.create_task(self._keep_watch(), name="watch over nodes")
        await self.until_ready(90)

    def _add(self, kind: Kind, number: int, scratch: Path) -> None:
        name = f"{kind}-{number}"
        namespace = self.network.add(name)
        near = Place(self.network.hub, self.network.hub_host, 0)
        proxy = self._open(near, self.database.primary.place, "postgres")
        environment = {
            **self._environment,
            "DULY_DATABASE_URL": f"postgresql://duly@{proxy.host}:{proxy.port}/duly?sslmode=disable",
            "DULY_COORDINATOR": self.coordinator,
        }
        registry_proxy = None
        if self.registry is not None:
            registry_proxy = self._open(near, self.registry.place, "raw")
            environment["DULY_COORDINATOR"] = self.registry.address(registry_proxy.host, registry_proxy.port)
        arguments = self.worker_arguments if kind == "worker" else []
        if kind == "api":
            # The API listens on its namespace's loopback without keys; the front proxy connects to it from outside.
            port = free_port()
            arguments = ["--host", "127.0.0.1", "--port", str(port), "--open"]
            self.front = self._open(Place(None, "127.0.0.1", 0), Place(namespace, "127.0.0.1", port), "raw")
        self.nodes[name] = Node(
            name, kind, number=number, network=self.network, command=[*self._launcher, kind, *arguments],
            environment=environment, proxy=proxy, registry_proxy=registry_proxy,
            clock=Clock(scratch / f"{name}.clock", clocks.library()), log=self.folder / f"{name}.log",
        )  # fmt: skip

    def _open(self, listen: Place, upstream: Place, protocol: Literal["postgres", "raw"]) -> Proxy:
        proxy = Proxy(self._thread, listen, upstream, protocol=protocol, seed=self.seed + len(self._proxies))
        proxy.start()
        self._proxies.append(proxy)
        return proxy

    def _open_way_out(self, node: Node, port: int) -> None:
        if node.namespace is not None:
            self._open(Place(node.namespace, "127.0.0.1", port), Place(None, "127.0.0.1", port), "raw")

    def _point(self, primary: Place) -> None:
        for node in self.nodes.values():
            node.proxy.point(primary)

    async def _keep_watch(self) -> None:
        """Restarts nodes that ended by themselves, and samples each node's memory."""
        sampled, ended = 0.0, dict[str, float]()
        while True:
            now = time.monotonic()
            for node in self.nodes.values():
                if node.alive() or node.ended_on_purpose:
                    ended.pop(node.name, None)
                elif node.name not in ended:
                    ended[node.name] = now
                    self.exits.append({"name": node.name, "at": time.time(), "code": node.code})
                elif now - ended[node.name] >= _RESTART_SECONDS:
                    del ended[node.name]
                    node.start()
            if now - sampled >= _SAMPLE_SECONDS:
                sampled = now
                for node in self.nodes.values():
                    if kilobytes := node.rss_kb():
                        node.rss.append((time.time(), kilobytes))
            await asyncio.sleep(0.1)

    # Healing.

    async def restart(self, node: Node) -> None:
        """Waits until a node that was asked to end has ended, kills it if it does not, and starts it."""
        deadline = time.monotonic() + PATIENCE
        while node.alive() and time.monotonic() < deadline:  # noqa: ASYNC110 nobody signals it
            await asyncio.sleep(0.05)
        node.kill()
        node.start()

    async def heal(self) -> None:
        """Undoes all faults, whatever they were; returns when the cluster's own API reports that it is complete."""
        self.network.mend_all()
        for node in self.nodes.values():
            node.clock.step(0)
            node.proxy.passing()
            if node.registry_proxy is not None:
                node.registry_proxy.passing()
            node.continue_()
        self.front.passing()
        if self.registry is not None:
            self.registry.go_on()
            await self.registry.start()
        await self.database.heal()
        self._point(self.database.primary.place)
        for node in self.nodes.values():
            if node.ended_on_purpose:
                await self.restart(node)
        await self.until_ready()

    def _remove(self) -> None:
        if self._closed:
            return
        self._closed = True
        for node in self.nodes.values():
            with contextlib.suppress(OSError):
                node.kill()
        for process in self._spawned:
            if process.poll() is None:
                process.kill()
                process.wait()
        if self.registry is not None:
            self.registry.kill()
        if hasattr(self, "database"):
            self.database.close()
        for proxy in self._proxies:
            with contextlib.suppress(Exception):  # the thread may be gone when the interpreter exits
                proxy.close()
        self._thread.close()
        self.network.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)


def _missing(cluster: dict[str, Any], schedulers: int, workers: int) -> str | None:
    if unled := sum(not shard["alive"] for shard in cluster["shards"]):
        return f"{unled} shards are not led"
    for what, wanted, found in (("schedulers", schedulers, cluster["nodes"]), ("workers", workers, cluster["workers"])):
        if (alive := sum(bool(node["alive"]) for node in found)) < wanted:
            return f"{alive} of {wanted} {what} have joined"
    return None
