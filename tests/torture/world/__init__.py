"""A small machine room for the torture: PostgreSQL twice, three schedulers, three workers, the API, and bad cables.

    async with World(
        folder,                                     # logs go here; it must exist
        seed=7,
        coordinator="postgres",                     # or postgres-advisory, etcd, zookeeper
        standby="synchronous",                      # or asynchronous, none
        namespaces=None,                            # None: where root allows; False: plain processes
        launcher=[sys.executable, "-m", "duly.cli"],
        environment={"PYTHONPATH": "…", "DULY_LEADER_LEASE_SECONDS": "2", "SINK": "…"},
        worker_arguments=["--app", "torture_app:app", "--quiet"],
        prepare=make_audit_triggers,                # async (admin_url) -> None: after `migrate`, before the first node
    ) as world:
        world.url                                   # the API, for clients here: http://127.0.0.1:PORT
        world.database.admin_url                    # the present primary, as superuser, by no network at all
        await world.expose(sink_port)               # 127.0.0.1:PORT of here is 127.0.0.1:PORT of every worker too
        ...
        await world.heal()                          # whatever was broken is whole; no operator is needed after it

- Handlers live in a network namespace of their own: they reach a sink by a Unix socket (works everywhere, nothing to
  do), or by a TCP port of this machine's loopback once `expose` was called with it (before or after the start). Neither
  way is ever faulted.
- `environment` is added to this process's own, of which `DULY_*` and `PG*` are dropped. The world sets
  `DULY_DATABASE_URL` and `DULY_COORDINATOR` itself, each node's by way of its own proxy.
- `admin_url` changes at a promotion: ask for it each time. It is a Unix socket and a superuser with reserved
  connections, so neither partitions nor storms shut it out; a crash does.
- `world.nodes` (name → `Node`) holds scheduler-1…3, worker-1…3, api-1. A `Node` has `name kind pid alive() kill()
  stop_signal() continue_() terminate() start() proxy namespace rss_kb() log clock`; `proxy` stands between it and
  PostgreSQL, `registry_proxy` between it and etcd or ZooKeeper; `world.front` stands between clients and the API.
- A node that exits although nobody killed it is started again after half a second, as a service manager would, and
  noted in `world.exits` (`{name, at, code}`): that is for the report, and for the checker's memory figures.
- `world.processes()` gives `[{name, pid, alive, rss_kb: [[at, kb], …]}]` for `final.json`, sampled every second;
  `world.logs()` gives `{name: path}`.

Nothing here imports `duly`. Everything is removed at the end, and what a run that died left behind is removed by the
next one: namespaces, mounts and folders carry the pid and the start of their process in their names.
"""

from __future__ import annotations

from .database import Database
from .node import Node
from .proxy import Proxy
from .world import World

__all__ = ["Database", "Node", "Proxy", "World"]
