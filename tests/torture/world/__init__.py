"""A small cluster for the torture: two PostgreSQL servers, three schedulers, three workers, the API, and bad cables.

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
        world.url                                   # the API, for clients on this machine: http://127.0.0.1:PORT
        world.database.admin_url                    # the present primary, as superuser, without any network
        await world.expose(sink_port)               # 127.0.0.1:PORT is this machine's port for every worker too
        ...
        await world.heal()                          # undoes all faults; no operator is needed after it

- Handlers live in network namespaces of their own. They reach a sink by a Unix socket (works everywhere, needs no
  call), or by a TCP port of this machine's loopback once `expose` was called with it (before or after the start).
  No fault touches either of them.
- `environment` is added to this process's environment without its `DULY_*` and `PG*` variables. The world itself sets
  `DULY_DATABASE_URL` and `DULY_COORDINATOR` of each node, to the node's own proxies.
- `admin_url` changes at a promotion: read it each time. It is a Unix socket for a superuser with reserved connections,
  so neither partitions nor connection storms block it; a crash does.
- `world.nodes` (name → `Node`) holds scheduler-1…3, worker-1…3, api-1. A `Node` has `name kind pid alive() kill()
  stop_signal() continue_() terminate() start() proxy namespace rss_kb() log clock`; `proxy` stands between it and
  PostgreSQL, `registry_proxy` between it and etcd or ZooKeeper; `world.front` stands between clients and the API.
- A node that ends by itself is started again after half a second, as by a service manager, and noted in `world.exits`
  (`{name, at, code}`), which `final.json` lists.
- `world.processes()` gives `[{name, pid, alive, rss_kb: [[at, kb], …]}]` for `final.json`, sampled every second;
  `world.logs()` gives `{name: path}`.

This package does not import `duly`. A run removes everything at its end; the next run removes what a run that died left
behind: the names of namespaces, mounts and folders contain the pid and the start time of their process.
"""

from __future__ import annotations

from .database import Database
from .node import Node
from .proxy import Proxy
from .world import World

__all__ = ["Database", "Node", "Proxy", "World"]
