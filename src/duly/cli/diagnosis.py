"""What `duly doctor` makes of the server's figures: each function takes figures and returns one check.

docs/doctor.md explains each check by its name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, TypeVar

from duly.errors import DulyError
from duly.formats import rough_span

if TYPE_CHECKING:
    from duly.config import Settings
    from duly.model import ClusterStatus
    from duly.store.demands import Demand
    from duly.store.diagnosis import Holder, Index, Pooling, Queue, Server, Table

T = TypeVar("T")

# Time for one look at the server. What takes longer is not known, and holds up no deploy.
LOOK_SECONDS = 1.0
# Time for an announcement to arrive; it takes a millisecond.
ANNOUNCE_SECONDS = 0.5
# Who keeps PostgreSQL from cleaning up: maximum age in seconds, and in transactions where the seconds are not known.
HELD_SECONDS = 600.0
HELD_TRANSACTIONS = 100_000
# A table or index is bloated if it is this many times as large as its rows need, and wastes at least so many bytes.
BLOAT_FACTOR = 4.0
BLOAT_BYTES = 100 * 1024 * 1024
# Autovacuum is behind if it is called for by this many times the dead rows that a table may have, and has not come.
DEAD_FACTOR = 10.0
DEAD_ROWS = 100_000
BEHIND_SECONDS = 600.0
# PostgreSQL stops writing at 2,144,000,000.
WRAPAROUND_WARN, WRAPAROUND_FAIL = 1_500_000_000, 2_000_000_000
# Part of the server's connections, and of its notification queue, from which on they are nearly full.
CONNECTIONS_FULL = 0.8
QUEUE_WARN, QUEUE_FAIL = 0.25, 0.75


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    status: Literal["ok", "warn", "fail"]
    message: str


async def looked(name: str, look: Awaitable[T], judge: Callable[[T], Check]) -> Check:
    """The judgement of what was found; a warning if that could not be seen."""
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            found = await look
    except TimeoutError:
        return Check(name, "warn", f"could not be looked at within {LOOK_SECONDS:g} s; try again when less is going on")
    except DulyError as error:
        return Check(name, "warn", f"could not be looked at: {error}")
    return judge(found)


def check_durability(server: Server) -> Check:
    """Whether what was confirmed survives a crash of the server's machine."""
    if not server.fsync or not server.full_page_writes:
        off = "fsync" if not server.fsync else "full_page_writes"
        return Check(
            "durability",
            "warn",
            f"{off} is off, so a crash of the server's machine can damage the whole store beyond repair; "
            f"run: alter system set {off} = on; select pg_reload_conf()",
        )
    if server.synchronous_commit == "off":
        return Check(
            "durability",
            "warn",
            "synchronous_commit is off, so a crash of the server loses what it confirmed in the last second: jobs, and "
            "outcomes whose runs then run again; set it for Duly's user: alter role … set synchronous_commit = on",
        )
    return Check("durability", "ok", "what is confirmed survives a crash of the server")


def check_vacuum(holders: Sequence[Holder], *, sees_all: bool) -> Check:
    """Who keeps PostgreSQL from removing dead rows. They do not slow Duly's own queries, but fill the disk."""
    held = [one for one in holders if _is_held(one)]
    unseen = "" if sees_all else " (of other users' sessions only with the role pg_read_all_stats or pg_monitor)"
    if not held:
        return Check("vacuum", "ok", f"no old transaction keeps PostgreSQL from cleaning up{unseen}")
    first = held[0]
    since = "" if first.seconds is None else f" for {rough_span(first.seconds)}"
    if first.transactions:
        since += f"{' and' if since else ' for'} {first.transactions:,} transaction{'s'[: first.transactions > 1]}"
    more = f"; so do {len(held) - 1} more: {', '.join(one.what for one in held[1:4])}" if len(held) > 1 else ""
    end = f"let it end, or end it with: {first.ending}" if first.ending else "look for long queries on the standby"
    return Check("vacuum", "warn", f"{first.what} has kept PostgreSQL from cleaning up{since}; {end}{more}{unseen}")


def _is_held(one: Holder) -> bool:
    if one.kind == "slot" and not one.in_use:
        return True
    if one.seconds is not None and one.kind != "slot":
        return one.seconds >= HELD_SECONDS
    return one.transactions is not None and one.transactions >= HELD_TRANSACTIONS


def check_autovacuum(server: Server, tables: Sequence[Table], schema: str) -> Check:
    if not server.autovacuum:
        return Check(
            "autovacuum",
            "warn",
            "it is off on the whole server, so dead rows stay; run: alter system set autovacuum = on; alter system set "
            "track_counts = on; select pg_reload_conf()",
        )
    dead = sorted(tables, key=lambda table: -table.dead)
    for table in dead:
        if not table.autovacuum:
            name = f"{schema}.{table.name}"
            return Check(
                "autovacuum",
                "warn",
                f"it is turned off for {name}, which has {table.dead:,} dead rows beside {table.live:,} live ones; "
                f"run: alter table {name} reset (autovacuum_enabled); vacuum {name}",
            )
    for table in dead:
        since = table.vacuumed_seconds_ago
        if table.dead < max(DEAD_FACTOR * table.dead_allowed, DEAD_ROWS) or (since or BEHIND_SECONDS) < BEHIND_SECONDS:
            continue
        when = "never" if since is None else f"{rough_span(since)} ago"
        return Check(
            "autovacuum",
            "warn",
            f"it is behind with {schema}.{table.name}: {table.dead:,} dead rows beside {table.live:,} live ones, "
            f"vacuumed {when}; if the check vacuum names nobody, give it more autovacuum_max_workers, and run: vacuum "
            f"{schema}.{table.name}",
        )
    most = f", at most {dead[0].dead:,} dead rows in {schema}.{dead[0].name}" if dead and dead[0].dead else ""
    return Check("autovacuum", "ok", f"it is on and keeps up{most}")


def check_wraparound(server: Server) -> Check:
    age = max(server.xid_age, server.multixact_age)
    # Autovacuum begins to freeze at freeze_max_age; twice that says that it does not get through.
    late = max(min(2 * server.freeze_max_age, WRAPAROUND_WARN), 1.05 * server.freeze_max_age)
    if age < min(late, WRAPAROUND_FAIL):
        return Check("wraparound", "ok", f"the oldest transaction id is {age:,} old, of 2,100,000,000")
    return Check(
        "wraparound",
        "fail" if age >= WRAPAROUND_FAIL else "warn",
        f"the oldest transaction id is {age:,} old; at about 2,100,000,000 PostgreSQL takes no more writes. End who "
        "keeps it from cleaning up (check vacuum), then run: vacuum (freeze)",
    )


def check_bloat(tables: Sequence[Table], indexes: Sequence[Index], schema: str) -> Check:
    """By sizes and the planner's statistics: nothing is read, so it is an estimate."""
    found = [
        *((f"{schema}.{one.name}", "table", one.bytes, one.needed) for one in tables if one.needed is not None),
        *((f"{schema}.{one.name}", "index", one.bytes, one.needed) for one in indexes),
    ]
    bloated = sorted(
        (
            (size - needed, name, kind, size, needed)
            for name, kind, size, needed in found
            if size >= BLOAT_FACTOR * needed and size - needed >= BLOAT_BYTES
        ),
        reverse=True,
    )
    if not bloated:
        return Check(
            "bloat", "ok", f"no table or index that Duly writes all the time is {BLOAT_FACTOR:g} times too large"
        )
    lines = []
    for _, name, kind, size, needed in bloated[:3]:
        what = f"the {kind} {name} has {_mib(size)}, and its rows need about {_mib(needed)}"
        if kind == "index":
            lines.append(f"{what}; run: reindex index concurrently {name}")
        else:
            lines.append(f"{what}; the rest is used again, and its empty end is given back by: vacuum {name}")
    if len(bloated) > len(lines):
        lines.append(f"and {len(bloated) - len(lines)} more")
    return Check("bloat", "warn", "\n".join(lines))


def _mib(size: float) -> str:
    return f"{size / 1024 / 1024:,.0f} MiB"


def check_connections(server: Server, status: ClusterStatus, settings: Settings) -> Check:
    allowed, used = server.connections_allowed, server.connections
    figures = f"{used:,} of {allowed:,} connections are in use, {server.own_connections:,} of them by Duly here"
    remedy = "raise max_connections, lower DULY_POOL_SIZE, or put PgBouncer in between (DULY_PGBOUNCER)"
    if used >= CONNECTIONS_FULL * allowed:
        return Check("connections", "warn", f"{figures}; {remedy}")
    alive = [node.kind for node in status.nodes if node.alive]
    # A pool and the listener; a worker has its heartbeat besides.
    most = sum(settings.pool_size + (2 if kind == "worker" else 1) for kind in alive)
    if most > allowed and not settings.pgbouncer:
        return Check(
            "connections",
            "warn",
            f"{figures}, but the {len(alive)} live nodes may open {most:,} (DULY_POOL_SIZE {settings.pool_size}); "
            f"{remedy}",
        )
    return Check("connections", "ok", figures)


def check_pooler(found: Pooling, direct: Pooling, settings: Settings) -> Check:
    """What is between Duly and PostgreSQL, and whether the settings say so. `direct`: before DULY_DIRECT_URL."""
    if settings.direct_url is not None and direct == "transaction":
        return Check(
            "pooler",
            "fail",
            "DULY_DIRECT_URL leads to a pooler in transaction mode, behind which LISTEN gets lost; set it to "
            "PostgreSQL itself",
        )
    if found == "transaction" and not settings.pgbouncer:
        return Check(
            "pooler",
            "fail",
            "DULY_DATABASE_URL leads to a pooler in transaction mode, behind which prepared statements and LISTEN get "
            "lost; set DULY_PGBOUNCER=1, and DULY_DIRECT_URL to PostgreSQL itself",
        )
    if found == "direct" and settings.pgbouncer:
        return Check(
            "pooler",
            "warn",
            "DULY_PGBOUNCER is set, but DULY_DATABASE_URL leads to PostgreSQL itself, so that every statement is "
            "planned anew for nothing; unset it",
        )
    if found == "direct":
        return Check("pooler", "ok", "there is none: DULY_DATABASE_URL leads to PostgreSQL itself")
    return Check("pooler", "ok", f"there is one in {found} mode, as the settings say")


def check_notifications(queue: Queue, arrived: float | None, live: int, *, sees_all: bool) -> Check:
    if queue.usage >= QUEUE_WARN:
        holder = "" if queue.oldest is None else f"; the one that holds it up is probably {queue.oldest}"
        end = "" if queue.oldest_pid is None else f", end it with: select pg_terminate_backend({queue.oldest_pid})"
        return Check(
            "notifications",
            "fail" if queue.usage >= QUEUE_FAIL else "warn",
            f"the server's queue is {queue.usage:.0%} full, and when it is full nothing can be submitted: a session "
            f"that listens does not read{holder}{end}{'' if sees_all else ' (with the role pg_monitor this names it)'}",
        )
    if arrived is None:
        return Check(
            "notifications",
            "warn",
            f"an announcement did not arrive within {ANNOUNCE_SECONDS:g} s, so work is found by polling only; set "
            "DULY_DIRECT_URL (or DULY_DATABASE_URL) to PostgreSQL itself, not to a pooler",
        )
    if live and queue.listening == 0:
        return Check(
            "notifications",
            "warn",
            f"announcements arrive, but none of the {live} live nodes listens: they poll; look at their "
            "DULY_DIRECT_URL and DULY_NOTIFICATIONS",
        )
    listening = "" if queue.listening is None else f", {queue.listening} sessions of Duly listen"
    unseen = "" if queue.listening is not None else " (who listens is seen with the role pg_monitor)"
    return Check(
        "notifications",
        "ok",
        f"one arrives in {rough_span(arrived)}{listening}, and the server's queue is {queue.usage:.0%} full{unseen}",
    )


def check_without_announcements(settings: Settings, silent_seconds: float) -> Check:
    """Where no announcement can come at all."""
    cost = (
        f"idle workers look every {rough_span(settings.poll_seconds)}, and schedulers read the next seconds every "
        f"{rough_span(silent_seconds)}"
    )
    if not settings.notifications:
        return Check("notifications", "ok", f"they are turned off (DULY_NOTIFICATIONS): {cost}")
    return Check(
        "notifications",
        "warn",
        f"none can arrive through a pooler in transaction mode: {cost}; set DULY_DIRECT_URL to PostgreSQL itself",
    )


def check_extras(demands: Sequence[Demand], settings: Settings) -> Check:
    """Optional parts that this set-up uses and that are not installed here."""
    scheme = settings.coordinator.partition("://")[0]
    http = sum(demand.jobs for demand in demands if demand.kind == "http")
    used = [
        (
            "http",
            "httpx",
            f"HTTP endpoints are called by active jobs ({http:,}), and a worker here cannot",
            http > 0,
            "warn",
        ),
        (
            "metrics",
            "prometheus_client",
            "DULY_HEALTH_PORT is set, whose /metrics is empty without it",
            settings.health_port is not None,
            "warn",
        ),
        ("etcd", "httpx", "DULY_COORDINATOR is etcd", scheme in ("etcd", "etcds"), "fail"),
        ("zookeeper", "kazoo", "DULY_COORDINATOR is zookeeper", scheme == "zookeeper", "fail"),
    ]
    missing = [
        (extra, why, status) for extra, module, why, is_used, status in used if is_used and find_spec(module) is None
    ]
    if not missing:
        there = ", ".join(extra for extra, _, _, is_used, _ in used if is_used)
        return Check("extras", "ok", f"all that is used is installed here: {there}" if there else "none is used")
    whys = "; ".join(why for _, why, _ in missing)
    return Check(
        "extras",
        "fail" if any(status == "fail" for _, _, status in missing) else "warn",
        f"{whys}; run: pip install 'duly[{','.join(extra for extra, _, _ in missing)}]'",
    )
