"""`duly doctor`: is this set-up fit to run jobs? Every check ends in ok, warn or fail, and says what to do."""

from __future__ import annotations

import asyncio
import os
import stat
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from duly.cli import diagnosis
from duly.cli.diagnosis import Check
from duly.cli.invocation import invocation_of, own_tenant
from duly.cli.output import coloured, hanging, print_json, say
from duly.errors import ConfigError, DulyError, InvalidInput
from duly.formats import rough_span
from duly.schema_name import in_what_schema

if TYPE_CHECKING:
    from duly.config import Settings
    from duly.model import ClusterStatus
    from duly.operations import Operations
    from duly.store.catalogue import Difference
    from duly.store.migrate import Planned
    from duly.store.opening import OpenStore
    from duly.store.pool import Pool
    from duly.store.stores import Facts

# Zones with rules of different kinds; a machine that knows them all has complete time-zone data.
_ZONES = ("UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe", "America/Sao_Paulo")
# Maximum difference to the database's clock, in seconds. This machine's clock never fires jobs, but dates its logs.
_CLOCK_SECONDS = 1.0
# Time in which a server of the coordinator must accept a connection.
_CONNECT_SECONDS = 2.0
# Maximum number of sentences about jobs that no live worker can run.
_MAX_SHOWN = 5


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="The checks as a JSON document.")] = False,
) -> None:
    """Check the set-up. The exit code is 0 only if nothing fails, so that it can gate a deploy."""
    from duly.process import run

    invocation_of(context).refuse_url()
    checks: list[Check] = []
    try:
        settings = invocation_of(context).settings()
    except ConfigError as error:
        checks.append(Check("settings", "fail", str(error)))
    else:
        checks += _check_settings(settings)
        checks += run(lambda: _check_store(settings))
    failed = sum(check.status == "fail" for check in checks)
    if as_json:
        print_json({"ok": failed == 0, "checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            say(f"{coloured(check.status)}{' ' * (6 - len(check.status))}{check.name:<12}{hanging(check.message)}")
    raise typer.Exit(1 if failed else 0)


def _check_settings(settings: Settings) -> list[Check]:
    beat, lease = settings.heartbeat_interval, settings.worker_lease_seconds
    return [
        # Settings that break the rule do not load at all; this only shows the margin.
        Check(
            "heartbeat",
            "ok",
            f"every {rough_span(beat)} for a lease of {rough_span(lease)}: {lease / beat:.0f} in a lease",
        ),
        _check_zones(),
        _check_files(settings),
        *([_check_commands(settings)] if settings.allow_commands else []),
    ]


def _check_files(settings: Settings) -> Check:
    """The home holds the embedded store and local keys: a user who can write there can act as this user."""
    from duly.homes import default_home
    from duly.local_keys import key_file, read_key

    try:
        home = settings.home or default_home()
        if not home.is_dir():
            return Check("files", "ok", f"{home} does not exist yet")
        mode = stat.S_IMODE(home.stat().st_mode)
        if mode & 0o022:
            return Check("files", "warn", f"other users can write to {home} (mode {mode:o}); run: chmod go-w {home}")
        for path in [key_file(home), *sorted((home / "keys").glob("*.key"))]:
            read_key(path)
    except (ConfigError, OSError) as error:
        return Check("files", "warn", str(error))
    return Check("files", "ok", f"only this user can write to {home}")


def _check_commands(settings: Settings) -> Check:
    if os.geteuid() == 0 and settings.command_user is None:
        return Check(
            "commands",
            "warn",
            "they are allowed here, and a worker run by root runs them as root; name an account: --command-user",
        )
    allowed = settings.allow_commands
    only = f"only {', '.join(allowed)}; " if isinstance(allowed, tuple) else ""
    return Check("commands", "ok", f"{only}they run as {settings.command_user or 'the account of their worker'}")


def _check_zones() -> Check:
    from importlib.metadata import PackageNotFoundError, version

    from duly.timing import load_zone

    try:
        for name in _ZONES:
            load_zone(name)
    except InvalidInput as error:
        return Check("zones", "fail", f"{error.message}; run: pip install tzdata")
    try:
        return Check("zones", "ok", f"time-zone data is there (tzdata {version('tzdata')})")
    except PackageNotFoundError:
        return Check("zones", "ok", "time-zone data is there (this machine's own)")


async def _check_store(settings: Settings) -> list[Check]:
    from duly.addresses import shown_postgres
    from duly.operations import StoreOperations
    from duly.store import catalogue, migrate, stores
    from duly.store.opening import open_store

    checks: list[Check] = []
    try:
        async with open_store(settings, checked=False) as store:
            where = "embedded PostgreSQL" if store.embedded else shown_postgres(store.pool.url)
            checks.append(Check("database", "ok", f"{where} answers{in_what_schema(settings.schema)}"))
            try:
                await migrate.check_version(store.pool)
            except DulyError as error:
                return [*checks, Check("schema", "fail", str(error))]
            facts = await stores.facts(store.pool)
            pending = await migrate.plan(store.pool)
            checks.append(Check("server", "ok", f"PostgreSQL {facts.server_version}"))
            checks.append(_check_schema(pending, await catalogue.drift(store.pool)))
            checks.append(_check_clock(store.pool, facts))
            operations = await StoreOperations.open(store.pool, settings)
            status = await operations.cluster.status()
            checks += await _check_server(store, facts, settings, status)
            checks.append(_check_keys(settings, keyed=await operations.keys.exist()))
            checks += [
                await _check_coordinator(status, settings),
                _check_shards(status),
                _check_workers(status),
                _check_runnable(own_tenant(operations).tenant, status),
                await _check_declared(own_tenant(operations), status),
                _check_overdue(status, operations.now(), settings),
            ]
    except DulyError as error:
        # What PgBouncer says about the settings that Duly gives its connections.
        pooler = "unsupported startup parameter" in str(error)
        hint = "; this is a pooler: set DULY_PGBOUNCER=1, and DULY_DIRECT_URL to PostgreSQL itself" if pooler else ""
        checks.append(Check("database", "fail", f"{error}{hint}"))
    return checks


async def _check_server(store: OpenStore, facts: Facts, settings: Settings, status: ClusterStatus) -> list[Check]:
    """The server's own health. The looks go side by side, and each has its time limit."""
    from duly.node import silent_seconds
    from duly.store import demands
    from duly.store import diagnosis as figures

    pool = store.pool
    server = await figures.server(pool)
    live = sum(node.alive for node in status.nodes)
    direct_url = settings.direct_url or pool.url

    async def tables_and_indexes() -> tuple[list[figures.Table], list[figures.Index]]:
        return await figures.tables(pool), await figures.indexes(pool)

    async def announced() -> tuple[figures.Queue, float | None]:
        found = await figures.queue(pool)
        if found.usage >= diagnosis.QUEUE_FAIL:
            return found, None  # one more might not fit
        return found, await figures.announcement_seconds(pool, direct_url, patience=diagnosis.ANNOUNCE_SECONDS)

    async def poolers() -> tuple[figures.Pooling, figures.Pooling]:
        before = await figures.pooling(pool.url)
        return before, before if settings.direct_url is None else await figures.pooling(settings.direct_url)

    async def notifications() -> Check:
        if not settings.notifications or (settings.pgbouncer and settings.direct_url is None):
            return diagnosis.check_without_announcements(settings, silent_seconds(settings))
        return await diagnosis.looked(
            "notifications",
            announced(),
            lambda heard: diagnosis.check_notifications(*heard, live, sees_all=server.sees_all),
        )

    now = pool.clock.now()
    return [
        diagnosis.check_durability(server),
        diagnosis.check_wraparound(server),
        diagnosis.check_connections(server, status, settings),
        *await asyncio.gather(
            diagnosis.looked("partitions", figures.strays(pool), lambda found: _check_partitions(facts, now, found)),
            diagnosis.looked(
                "vacuum", figures.holders(pool), lambda held: diagnosis.check_vacuum(held, sees_all=server.sees_all)
            ),
            diagnosis.looked(
                "autovacuum",
                figures.tables(pool),
                lambda tables: diagnosis.check_autovacuum(server, tables, pool.schema),
            ),
            diagnosis.looked("bloat", tables_and_indexes(), lambda sizes: diagnosis.check_bloat(*sizes, pool.schema)),
            diagnosis.looked("pooler", poolers(), lambda found: diagnosis.check_pooler(*found, settings)),
            notifications(),
            diagnosis.looked("extras", demands.read(pool), lambda one: diagnosis.check_extras(one.demands, settings)),
        ),
    ]


def _check_schema(pending: list[Planned], differences: list[Difference]) -> Check:
    if differences:
        others = len(differences) - 1
        more = f" (and {others} more difference{'s'[: others > 1]}: duly migrate --check)" if others else ""
        return Check("schema", "warn", f"{differences[0]}{more}")
    if not pending:
        return Check("schema", "ok", "up to date with this Duly")
    if waiting := [one for one in pending if one.waits_for]:
        nodes = ", ".join(waiting[0].waits_for)
        return Check("schema", "ok", f"{waiting[0].what.label} waits until these older nodes have ended: {nodes}")
    names = ", ".join(one.what.label for one in pending)
    return Check("schema", "warn", f"this Duly has more to bring: {names}; run: duly migrate")


def _check_clock(pool: Pool, facts: Facts) -> Check:
    if not facts.clock_is_real:
        return Check(
            "clock",
            "fail",
            f"the store's clock was stopped or moved, as tests do: reset the row of {pool.schema}.clock to real time",
        )
    off = (datetime.now(UTC) - pool.clock.now()).total_seconds()
    if abs(off) > _CLOCK_SECONDS:
        side = "ahead of" if off > 0 else "behind"
        return Check(
            "clock",
            "warn",
            f"this machine is {rough_span(abs(off))} {side} the database, whose clock decides; check the time service",
        )
    known = max(abs(off), pool.clock.error_us / 1e6)
    return Check("clock", "ok", f"within {rough_span(known)} of the database's, which decides")


def _check_partitions(facts: Facts, now: datetime, strays: int) -> Check:
    if facts.partitions_until is None:
        return Check("partitions", "fail", "the history has none; run a scheduler: duly scheduler")
    # The last partition holds a whole day.
    ahead = facts.partitions_until + timedelta(days=1) - now
    last = f"made until {facts.partitions_until:%Y-%m-%d}"
    if ahead < timedelta(days=1):
        return Check("partitions", "fail", f"{last}, which is less than a day ahead; run a scheduler: duly scheduler")
    if ahead < timedelta(days=3):
        return Check("partitions", "warn", f"{last}; a running scheduler makes them a week ahead: duly scheduler")
    if strays:
        return Check(
            "partitions",
            "warn",
            f"{last}, but the default partition holds rows of days from today on ({strays:,}), whose own partitions "
            "are missing; a running scheduler makes those and moves the rows: duly scheduler",
        )
    return Check("partitions", "ok", last)


def _check_keys(settings: Settings, *, keyed: bool) -> Check:
    if keyed:
        return Check("keys", "ok", "the API takes keys of the store")
    if settings.open_api:
        return Check(
            "keys",
            "warn",
            "the API is open (DULY_OPEN_API) to everybody who reaches its port; to close it: duly key create",
        )
    return Check(
        "keys", "ok", "the store has none: the API accepts the local key of the user who starts it (duly key link)"
    )


async def _check_coordinator(status: ClusterStatus, settings: Settings) -> Check:
    own = settings.coordinator.partition("://")[0].replace("etcds", "etcd")
    alive = [node for node in status.nodes if node.alive and node.kind == "scheduler" and "coordinator" in node.info]
    used = {str(node.info["coordinator"]).replace("etcds", "etcd") for node in alive}
    if used - {own}:
        return Check(
            "coordinator",
            "fail",
            f"{own} is set here (DULY_COORDINATOR), but live schedulers use {', '.join(sorted(used))}: all must use "
            "the same",
        )
    if (address := settings.coordinator_address) is None:
        return Check("coordinator", "ok", own)
    away = [f"{host}:{port}" for host, port in address.hosts if not await _is_listening(host, port)]
    if len(away) == len(address.hosts):
        return Check(
            "coordinator", "fail", f"{own} does not answer at {', '.join(away)}, so no job fires; start it again"
        )
    if away:
        return Check("coordinator", "warn", f"{own} does not answer at {', '.join(away)}")
    return Check("coordinator", "ok", f"{own} answers at {address.shown}")


async def _is_listening(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _check_shards(status: ClusterStatus) -> Check:
    alone = sum(not shard.alive for shard in status.shards)
    if alone:
        return Check(
            "shards",
            "fail",
            f"{alone} of {len(status.shards)} have no live scheduler, so their jobs do not fire; start: duly scheduler",
        )
    schedulers = sum(node.alive and node.kind == "scheduler" for node in status.nodes)
    return Check("shards", "ok", f"all {len(status.shards)} are led; live schedulers: {schedulers}")


def _check_workers(status: ClusterStatus) -> Check:
    workers = [node for node in status.nodes if node.alive and node.kind == "worker"]
    if not workers:
        return Check("workers", "fail", "none is alive, so nothing runs; start: duly worker --app module:app")
    if hanging := [node for node in workers if node.info.get("hanging_threads")]:
        first = hanging[0]
        return Check(
            "workers",
            "warn",
            f"{len(hanging)} of {len(workers)} have handler threads that hang ({first.name}: "
            f"{first.info['hanging_threads']} of {first.info.get('threads')}); restart them, and give such tasks "
            "isolation='process'",
        )
    return Check("workers", "ok", f"{len(workers)} alive")


def _check_runnable(tenant: str, status: ClusterStatus) -> Check:
    """Whether each active job and each waiting run has a live worker that can run it."""
    from duly.operations.notices import notices_of

    found = notices_of(one for one in status.unrunnable if one.tenant == tenant)
    others = len(status.unrunnable) - len(found)
    if found:
        lines = [f"{one.message}; {one.next_step}" for one in found[:_MAX_SHOWN]]
        if more := len(found) - len(lines):
            lines.append(f"and {more} more queues and handlers; duly status --json lists them")
        return Check("runnable", "warn", "\n".join(lines))
    if others:
        return Check(
            "runnable",
            "warn",
            f"jobs of other tenants cannot run ({others} queues and handlers); see: duly status --json",
        )
    if status.surveyed_at is None:
        return Check(
            "runnable", "ok", "each job that was looked at has a worker; a scheduler has not looked at all jobs yet"
        )
    return Check("runnable", "ok", "each active job has a live worker that can run it")


async def _check_declared(operations: Operations, status: ClusterStatus) -> Check:
    """Jobs that the code declares and that do not run, or that run although no code declares them."""
    from duly.operations.notices import declared_notices

    notices = declared_notices(await operations.declarations.noted())
    for one in notices:
        if one.wrong:
            return Check("declared", "warn", f"{one.message}; {one.next_step}")
    live = [node.info["app"] for node in status.nodes if node.alive and node.kind == "worker" and "app" in node.info]
    deploys = {(app.get("name"), app.get("rank")): app.get("deploy") for app in live}
    for name in sorted({name for name, _ in deploys}):
        of_app = [deploy for (owner, _), deploy in sorted(deploys.items()) if owner == name]
        if name and len(of_app) > 1:
            return Check(
                "declared",
                "ok",
                f"workers of app {name!r} are of {len(of_app)} deploys; {of_app[-1]} decides about its declared jobs",
            )
    if notices:
        return Check("declared", "ok", f"{notices[0].message}; {notices[0].next_step}")
    return Check("declared", "ok", "every job that the code declares can fire, unless it is paused")


def _check_overdue(status: ClusterStatus, now: datetime, settings: Settings) -> Check:
    counts = status.counts
    late = (now - counts.oldest_overdue_at).total_seconds() if counts.oldest_overdue_at is not None else 0.0
    if late > settings.misfire_grace_seconds:
        return Check(
            "overdue",
            "warn",
            f"{counts.overdue} jobs should have fired by now, the oldest {rough_span(late)} ago; see: duly status",
        )
    return Check("overdue", "ok", "every job that was due has fired")
