"""`duly worker`: claims and executes runs until a signal. The first ends it gracefully, the second one at once."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from duly.cli.ending import ENDING_SECONDS, cancelled_by, ending_at_once, exit_code, take_lifeline, watch_lifeline
from duly.cli.invocation import invocation_of, own_tenant
from duly.cli.options import (
    AllowCommandOption,
    AllowCommandsOption,
    AppOption,
    CommandUserOption,
    ConcurrencyOption,
    HealthHostOption,
    HealthPortOption,
    MaxMemoryOption,
    MaxRunsOption,
    PassEnvOption,
    QueueOption,
)
from duly.cli.output import examples
from duly.errors import ConfigError
from duly.logs import let_handlers_log

if TYPE_CHECKING:
    from pathlib import Path

    from duly.app import Duly
    from duly.cli.supervised import WorkerProcesses
    from duly.config import Settings

log = logging.getLogger("duly.cli")

TenantOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tenant",
        help="Tenant to serve; repeat for several. The worker then takes no other tenant's runs, in any queue. It does "
        "not say whose jobs the application declares: that is `duly --tenant T worker …`. "
        "Fastest with a queue that only they use (duly tenant set T --queues Q): it holds no runs to skip. "
        "Default: all tenants (DULY_WORKER_TENANTS, separated by commas).",
        metavar="T",
    ),
]
MAX_PROCESSES = 256
MAX_WEIGHT = 1_000


_EXAMPLES = examples(
    "duly worker --app myproject.jobs:app",
    "duly worker --app myproject.jobs:app --queue reports=3 --queue default --concurrency 20",
    "duly worker --app myproject.jobs:app --tenant acme --queue acme",
    "duly --tenant acme worker --app acme.jobs:app",
    "duly worker --app myproject.jobs:app --processes 4 --allow-commands --command-user batch",
    "duly worker --app myproject.jobs:app --processes 4 --max-runs 10000 --max-memory 512MB",
    "duly worker --app myproject.jobs:app --processes 4 --health-port 9090 --health-host 0.0.0.0",
    "duly worker --allow-commands",
    "duly worker --allow-command 'backup*' --allow-command /usr/bin/rsync",
)


def register(app: typer.Typer) -> None:
    app.command("worker", epilog=_EXAMPLES)(worker)


def worker(
    context: typer.Context,
    app: AppOption = None,
    queue: QueueOption = None,
    tenant: TenantOption = None,
    concurrency: ConcurrencyOption = None,
    processes: Annotated[
        int | None,
        typer.Option(
            help="Number of worker processes. This process supervises them, restarts those that crash, and replaces "
            "those of which half the handler threads hang. Default: this process is the worker itself, or the "
            "supervisor of one with --max-runs or --max-memory.",
            min=1,
            max=MAX_PROCESSES,
            metavar="N",
        ),
    ] = None,
    allow_commands: AllowCommandsOption = False,
    allow_command: AllowCommandOption = None,
    command_user: CommandUserOption = None,
    pass_env: PassEnvOption = None,
    max_runs: MaxRunsOption = None,
    max_memory: MaxMemoryOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no line for each run that ends.")] = False,
    health_port: HealthPortOption = None,
    health_host: HealthHostOption = None,
    supervised: Annotated[UUID | None, typer.Option("--supervised", hidden=True, metavar="ID")] = None,
) -> None:
    """Run a worker, which claims due runs and calls the application's tasks. Start as many as you like.

    First it registers or updates the jobs that the application declares (@app.cron). Without --app it has no tasks and
    runs jobs whose handler is an HTTP endpoint or, with --allow-commands, a command.
    """
    from duly.cli.loading import app_to_run
    from duly.node import wear_limits
    from duly.process import conceal, run
    from duly.worker.wear import Limits

    conceal()
    lifeline = take_lifeline() if supervised is not None else None
    invocation = invocation_of(context)
    invocation.export()
    settings = invocation.settings()
    let_handlers_log(settings.log_level)
    application = app_to_run(app, settings)
    invocation.check_tenant(application)
    if supervised is not None:
        # The supervisor has chosen the store and the tenant; all other settings are the application's.
        chosen = ("database_url", "home", "schema", "tenant", "log_level", "log_format")
        found = {name: getattr(settings, name) for name in chosen}
        settings = application.settings.model_copy(update=found)
    else:
        settings = invocation.settings_with(application)
    settings = with_commands(
        settings, allowed=allow_commands, programs=allow_command, user=command_user, passed=pass_env
    )
    settings = with_limits(settings, max_runs=max_runs, max_memory=max_memory)
    settings = settings.changed(health_port=health_port, health_host=health_host)
    queues, tenants = queues_of(application, queue), tenants_of(settings, tenant)
    if processes is None and supervised is None and wear_limits(settings) != Limits():
        processes = 1  # only a supervisor can replace a worker process
    if processes is not None:
        workers = _workers(settings, app, application, queues, tenants, concurrency, processes=processes, quiet=quiet)
        raise typer.Exit(run(lambda: _supervise(workers, processes, settings)))
    code = run(
        lambda: _work(
            settings, application, queues, tenants, concurrency, quiet=quiet, lifeline=lifeline, worker_id=supervised
        )
    )
    _leave_threads_behind(code)
    raise typer.Exit(code)


def with_commands(
    settings: Settings,
    *,
    allowed: bool,
    programs: Sequence[str] | None,
    user: str | None,
    passed: Sequence[str] | None,
) -> Settings:
    """The settings with the flags about commands. A mistake is reported here, before anything is started."""
    from duly.config import check_programs
    from duly.worker.targets.making import check_commands

    said: dict[str, object] = {"allow_commands": True} if allowed else {}
    if programs:
        if allowed:
            raise ConfigError("--allow-commands allows every program, --allow-command only some: give one of them")
        try:
            said["allow_commands"] = check_programs(programs)
        except ValueError as error:
            raise ConfigError(f"--allow-command: {error}") from error
    if user is not None:
        said["command_user"] = user
    if passed:
        said["pass_env"] = ",".join(passed)
    settings = settings.model_copy(update=said)
    check_commands(settings)
    return settings


def with_limits(settings: Settings, *, max_runs: int | None, max_memory: str | None) -> Settings:
    """The settings with the flags about replacing worker processes."""
    from duly.sizes import read_size

    if max_memory is not None:
        try:
            read_size(max_memory)
        except ValueError as error:
            raise ConfigError(f"--max-memory: {error}") from None
    return settings.changed(worker_max_runs=max_runs, worker_max_memory=max_memory)


def queues_of(application: Duly, chosen: Sequence[str] | None) -> dict[str, int]:
    """The queues that a worker of this application serves, with weights: the chosen ones, else all of its tasks."""
    if not chosen:
        return dict.fromkeys(["default", *sorted(task.queue for task in application.tasks.values())], 1)
    queues: dict[str, int] = {}
    for text in chosen:
        name, weight = _queue(text)
        if queues.setdefault(name, weight) != weight:
            raise ConfigError(f"--queue {text}: {name} was already given another weight")
    return queues


def tenants_of(settings: Settings, chosen: Sequence[str] | None) -> list[str]:
    """The tenants whose runs a worker takes; empty: all tenants."""
    from duly.checks import check_text

    tenants = list(chosen) if chosen else [name.strip() for name in settings.worker_tenants.split(",") if name.strip()]
    for name in tenants:
        check_text("--tenant", name, longest=100)
    return list(dict.fromkeys(tenants))


def shown_work(application: Duly, settings: Settings) -> str:
    """What a worker runs, for people."""
    allowed = settings.allow_commands
    only = f" ({', '.join(allowed)})" if isinstance(allowed, tuple) else ""
    others = "HTTP endpoints" + (f" and commands{only}" if allowed else "")
    return f"{len(application.tasks)} tasks" if application.tasks else f"no Python tasks, only {others}"


def shown_queues(queues: Mapping[str, int]) -> str:
    return ", ".join(queue if weight == 1 else f"{queue}={weight}" for queue, weight in queues.items())


def _queue(text: str) -> tuple[str, int]:
    name, equals, weight = text.rpartition("=")
    if not equals:
        name, weight = text, "1"
    if not name:
        raise ConfigError(f"--queue {text!r}: the name of the queue is missing")
    if not (weight.isascii() and weight.isdigit() and 1 <= int(weight[:9]) <= MAX_WEIGHT):
        raise ConfigError(
            f"--queue {text}: the weight after = must be a whole number from 1 to {MAX_WEIGHT} "
            f"(if that is the queue's whole name, add a weight: {text}=1)"
        )
    return name, int(weight)


def _workers(
    settings: Settings,
    app_name: str | None,
    application: Duly,
    queues: Mapping[str, int],
    tenants: Sequence[str],
    concurrency: int | None,
    *,
    processes: int,
    quiet: bool,
) -> WorkerProcesses:
    from duly.cli.supervised import WorkerProcesses
    from duly.worker.processes.children import check_isolated

    check_isolated(application.tasks)  # here too: a mistake is then reported once, before any process starts
    return WorkerProcesses.of(
        settings,
        app_name,
        home=home_of(settings),
        queues=queues,
        tenants=tenants,
        concurrency=concurrency,
        count=processes,
        quiet=quiet,
    )


def home_of(settings: Settings) -> Path | None:
    """The folder of the embedded PostgreSQL, if that is the store."""
    from duly.homes import default_home

    return None if settings.database_url is not None else settings.home or default_home()


async def _supervise(workers: WorkerProcesses, count: int, settings: Settings) -> int:
    from duly.cli.health_server import answering
    from duly.process import Signals

    signals = Signals()
    async with ending_at_once(signals, [workers.hasten]), AsyncExitStack() as stack:
        async with cancelled_by(signals):
            stack.enter_context(workers.reports.watching())
            await stack.enter_async_context(answering(workers.reports, settings))
            stack.push_async_callback(workers.stop)
            await workers.start()
            log.info("supervising %d worker process%s", count, "" if count == 1 else "es")
        await signals.asked.wait()
        log.info("stopping: running handlers may finish (a second signal ends them)")
    return exit_code(signals)


async def _work(
    settings: Settings,
    application: Duly,
    queues: Mapping[str, int],
    tenants: Sequence[str],
    concurrency: int | None,
    *,
    quiet: bool,
    lifeline: int | None,
    worker_id: UUID | None,
) -> int:
    from duly.cli.health_server import answering
    from duly.cli.reports import reporting
    from duly.cli.runlog import RunLog
    from duly.cli.worker_messages import Ready, say
    from duly.maintenance.orphans import pause_orphans
    from duly.node import node_name, running_worker, wear_limits
    from duly.operations import StoreOperations
    from duly.operations.declare import DeclarationKeeper
    from duly.process import Signals
    from duly.store.opening import open_store
    from duly.vitals import Vitals
    from duly.worker.wear import Wear

    signals = Signals()
    vitals = Vitals("worker", hung_seconds=settings.health_hung_seconds)
    wear = None if lifeline is None else Wear(wear_limits(settings), partial(say, lifeline))
    observer = None if quiet else RunLog(as_json=settings.log_format == "json")
    stop_now: list[Callable[[], None]] = []
    patience = settings.shutdown_grace_seconds + ENDING_SECONDS
    async with ending_at_once(signals, stop_now, patience=patience), AsyncExitStack() as stack:
        if lifeline is not None:
            watch_lifeline(lifeline, signals)
        stack.push_async_callback(application.close)  # handlers may have submitted jobs through it
        async with cancelled_by(signals):
            stack.enter_context(vitals.watching())
            if lifeline is None:
                await stack.enter_async_context(answering(vitals, settings))
            else:
                stack.enter_context(reporting(vitals, lifeline))  # the supervisor answers
            store = await stack.enter_async_context(open_store(settings))
            operations = own_tenant(await StoreOperations.open(store.pool, settings, local_handlers=application.tasks))
            by, declaring = application.declarer(settings), operations.declarations
            requests = list(application.declared.values())
            if requests and tenants and declaring.tenant not in tenants:
                log.warning(
                    "this worker declares jobs of tenant %r and takes only the runs of %s: other workers have to run "
                    "them, or declare them for that tenant: duly --tenant T worker …",
                    declaring.tenant, ", ".join(map(repr, tenants)),
                )  # fmt: skip
            for declared in await declaring.declare_all(requests, by, application.renamed_from):
                if declared.message is not None:
                    log.warning("%s", declared.message)
            running = await stack.enter_async_context(
                running_worker(
                    store.pool,
                    application.tasks,
                    settings,
                    queues=queues,
                    tenants=tenants,
                    concurrency=concurrency,
                    observer=observer,
                    app=by.info(declaring.tenant),
                    worker_id=worker_id,
                    wear=wear,
                    vitals=vitals,
                )
            )
            stop_now.append(running.stop_now)
            await pause_orphans(store.pool)  # now that this worker is one of the live ones
            if requests:
                keeper = DeclarationKeeper(declaring, requests, by, application.renamed_from)
                await keeper.start()
                stack.push_async_callback(keeper.stop)
            log.info(
                "worker %s is running: %s, queues %s%s",
                node_name(),
                shown_work(application, settings),
                shown_queues(queues),
                f", for {', '.join(map(repr, tenants))} only" if tenants else "",
            )
            if lifeline is not None and wear is not None:
                say(lifeline, Ready(wear.baseline, wear.cramped))
        await signals.asked.wait()
        if lifeline is None:  # else its supervisor has logged it
            log.info("stopping: running handlers may finish (a second signal ends them)")
    if observer is not None:
        observer.flush()
    return exit_code(signals)


def _leave_threads_behind(code: int) -> None:
    """Exit without the threads of abandoned handlers: Python would wait for them at exit, perhaps for ever."""
    deadline = time.monotonic() + 0.5  # idle threads end by themselves
    for thread in threading.enumerate():
        if thread.name.startswith("duly-handler"):
            thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.name.startswith("duly-handler") for thread in threading.enumerate()):
        log.warning("a handler still runs in a thread, which cannot be stopped; exiting without it")
        sys.stdout.flush()
        os._exit(code)
