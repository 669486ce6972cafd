"""`duly up`: everything with one command. The scheduler runs in this process, the API and the worker in children.

Thus neither callers of the API nor handlers can keep the scheduler from firing on time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duly.cli.commands.worker import home_of, queues_of, shown_queues, shown_work, with_commands, with_limits
from duly.cli.ending import cancelled_by, ending_at_once, exit_code
from duly.cli.invocation import Invocation, invocation_of, own_tenant
from duly.cli.options import (
    AllowCommandOption,
    AllowCommandsOption,
    AppOption,
    CommandUserOption,
    ConcurrencyOption,
    HostOption,
    MaxMemoryOption,
    MaxRunsOption,
    OpenOption,
    PassEnvOption,
    PortOption,
    QueueOption,
)
from duly.cli.output import examples, say, styled
from duly.errors import ConfigError
from duly.schema_name import in_what_schema

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.cli.api_process import Served
    from duly.cli.supervised import ApiProcess
    from duly.config import Settings
    from duly.figures import Snapshot
    from duly.process import Signals

log = logging.getLogger("duly.cli")

DEMO_APP = "duly.cli.demo:app"
_DEMO_PREFIX = "duly-demo-"
_DEMO_PID = "demo.pid"
_STOPPING = "stopping; running handlers may finish (Ctrl-C again ends them)"
# Number of ports that are tried if the usual one is taken.
PORTS_TRIED = 50
# Pause between two times that the API is told the figures of the other processes.
TELL_SECONDS = 1.0

_EXAMPLES = examples(
    "duly up --demo",
    "duly up --app myproject.jobs:app --concurrency 20",
    "duly up --allow-commands",
    "DULY_DATABASE_URL=postgresql://user@host/name duly up --app myproject.jobs:app --port 9000",
)


def register(app: typer.Typer) -> None:
    app.command("up", epilog=_EXAMPLES)(up)


def up(
    context: typer.Context,
    demo: Annotated[bool, typer.Option("--demo", help="Run a few sample jobs.")] = False,
    app: AppOption = None,
    host: HostOption = None,
    port: PortOption = None,
    concurrency: ConcurrencyOption = None,
    queue: QueueOption = None,
    allow_commands: AllowCommandsOption = False,
    allow_command: AllowCommandOption = None,
    command_user: CommandUserOption = None,
    pass_env: PassEnvOption = None,
    max_runs: MaxRunsOption = None,
    max_memory: MaxMemoryOption = None,
    open_to_all: OpenOption = False,
) -> None:
    """Run everything: an embedded PostgreSQL unless you have one, a scheduler, the API and your application's worker.

    Without --app the worker runs jobs whose handler is an HTTP endpoint or, with --allow-commands, a command.

    The printed link opens the live page; keep it to yourself, because it holds a key. Each run is shown as it ends.
    Ctrl-C stops everything; a second Ctrl-C does so at once.
    """
    from duly.cli.supervised import ApiProcess
    from duly.process import conceal

    conceal()
    if demo and app is not None:
        raise ConfigError("--demo brings an application of its own: give --demo or --app, not both")
    invocation = invocation_of(context)
    invocation.refuse_url()
    # Started first, because importing the web framework takes half a second; the rest is loaded meanwhile.
    with ApiProcess() as api:
        plan = _planned(
            invocation,
            demo=demo,
            app=app,
            host=host,
            port=port,
            concurrency=concurrency,
            queue=queue,
            with_flags=lambda settings: with_limits(
                with_commands(
                    settings, allowed=allow_commands, programs=allow_command, user=command_user, passed=pass_env
                ),
                max_runs=max_runs,
                max_memory=max_memory,
            ).changed(open_api=open_to_all or None),
        )
        raise typer.Exit(_run(plan, api))


def _planned(
    invocation: Invocation,
    *,
    demo: bool,
    app: str | None,
    host: str | None,
    port: int | None,
    concurrency: int | None,
    queue: list[str] | None,
    with_flags: Callable[[Settings], Settings],
) -> _Plan:
    from duly.cli.loading import app_to_run

    invocation.export()
    settings = invocation.settings()  # sets up logging first, because an import may log
    name = DEMO_APP if demo else app
    # Here as well as in the worker: a mistake is reported at once, and the API knows the tasks.
    application = app_to_run(name, settings)
    invocation.check_tenant(application)
    settings = with_flags(invocation.settings_with(application))
    return _Plan(
        settings=settings,
        application=application,
        app_name=name,
        demo=demo,
        host=host or settings.host,
        port=settings.port if port is None else port,
        port_is_chosen=port is not None or "port" in settings.model_fields_set,
        concurrency=concurrency,
        queues=queues_of(application, queue),
    )


def _run(plan: _Plan, api: ApiProcess) -> int:
    from duly.process import run

    settings = plan.settings
    if plan.demo and settings.database_url is None and settings.home is None and "DULY_HOME" not in os.environ:
        # The user's own application must not find the sample jobs in the default home later.
        with _temporary_home() as home:
            plan = dataclasses.replace(plan, settings=settings.model_copy(update={"home": home}))
            return run(lambda: _up(plan, api))
    return run(lambda: _up(plan, api))


@contextmanager
def _temporary_home() -> Iterator[Path]:
    """A home for one demo, removed at its end; those of demos that were killed are removed now."""
    for left in Path(tempfile.gettempdir()).glob(f"{_DEMO_PREFIX}*"):
        # Others may have folders there as well: only one of this user, whose PostgreSQL does not run, is removed.
        if _is_left_behind(left):
            shutil.rmtree(left, ignore_errors=True)
    home = Path(tempfile.mkdtemp(prefix=_DEMO_PREFIX))
    (home / _DEMO_PID).write_text(str(os.getpid()))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _is_left_behind(home: Path) -> bool:
    from duly.store import embedded

    try:
        if home.is_symlink() or home.stat().st_uid != os.geteuid():
            return False
        os.kill(int((home / _DEMO_PID).read_text()), 0)
    except ProcessLookupError:
        return not embedded.is_running(home)
    except (OSError, ValueError):
        return False
    return False


@dataclass(frozen=True, slots=True)
class _Plan:
    """The command line and the settings, combined."""

    settings: Settings
    application: Duly
    app_name: str | None
    demo: bool
    host: str
    port: int
    port_is_chosen: bool
    concurrency: int | None
    queues: dict[str, int]


async def _up(plan: _Plan, api: ApiProcess) -> int:
    from duly.cli.api_process import Orders
    from duly.cli.supervised import WorkerProcesses
    from duly.local_keys import announced
    from duly.node import running_scheduler
    from duly.operations import StoreOperations
    from duly.process import Signals
    from duly.store.opening import open_store
    from duly.vitals import Vitals

    settings = plan.settings
    home = home_of(settings)
    signals = Signals()
    hasten: list[Callable[[], None]] = [api.hasten]
    async with ending_at_once(signals, hasten), AsyncExitStack() as stack:
        async with _saying_that_it_stops(signals), cancelled_by(signals):
            listener = stack.enter_context(await _listen(plan))
            if home is not None:
                log.info("opening the embedded PostgreSQL in %s", home)
            store = await stack.enter_async_context(open_store(settings, migrating=True))
            handlers = plan.application.tasks
            # By its home: the API, like a worker, counts as a user of the embedded PostgreSQL.
            orders = Orders(settings.model_copy(update={"home": home}), plan.host, list(handlers))
            serving = asyncio.create_task(api.serve(listener, orders))
            stack.push_async_callback(_end, api, serving)
            operations = own_tenant(await StoreOperations.open(store.pool, settings, local_handlers=handlers))
            workers = WorkerProcesses.of(
                settings, plan.app_name, home=home, queues=plan.queues, concurrency=plan.concurrency
            )
            await workers.start()
            stack.push_async_callback(workers.stop)
            hasten.append(workers.hasten)
            vitals = Vitals("scheduler", hung_seconds=settings.health_hung_seconds)
            await stack.enter_async_context(running_scheduler(store.pool, settings, vitals=vitals))
            served = await asyncio.shield(serving)
            stack.enter_context(announced(served.address, served.key_file))
            # The API ends first: it accepts no more requests and answers those in progress.
            stack.push_async_callback(api.stop)
            telling = asyncio.create_task(_tell(api, lambda: vitals.snapshots() | workers.reports.snapshots()))
            stack.callback(telling.cancel)
            _greet(plan, served, home)
            if plan.demo:
                from duly.cli.demo import register_jobs

                await register_jobs(operations)
        await signals.asked.wait()
        say(_STOPPING, err=True)
    say("stopped", err=True)
    return exit_code(signals)


async def _tell(api: ApiProcess, snapshots: Callable[[], dict[str, Snapshot]]) -> None:
    """Tell the API's /metrics every second what the scheduler and the worker have counted."""
    while True:
        api.tell(snapshots())
        await asyncio.sleep(TELL_SECONDS)


async def _end(api: ApiProcess, serving: asyncio.Task[Served]) -> None:
    """Stop the API, whether it is still starting or already serving."""
    serving.cancel()
    await asyncio.wait([serving])
    _ = serving.cancelled() or serving.exception()  # mark the exception as seen: it was reported already
    await api.stop()


@asynccontextmanager
async def _saying_that_it_stops(signals: Signals) -> AsyncIterator[None]:
    """Say that it stops also if that happens during the start: the worker may have runs to finish by then."""
    try:
        yield
    except asyncio.CancelledError:
        if signals.asked.is_set():
            say(_STOPPING, err=True)
        raise


async def _listen(plan: _Plan) -> socket.socket:
    """Bind the API's port, before anything is started, so that a taken port is reported at once."""
    from duly.api.binding import bind_first_free

    listener = await bind_first_free(plan.host, plan.port, tries=1 if plan.port_is_chosen else PORTS_TRIED)
    if plan.port not in (0, port := listener.getsockname()[1]):
        log.warning("port %d is taken; using %d", plan.port, port)
    return listener


def _greet(plan: _Plan, served: Served, home: Path | None) -> None:
    from duly.addresses import shown_postgres

    say()
    say(f"  {styled('Duly is up', bold=True)}: {styled(served.link, fg='cyan', bold=True)}")
    store = f"embedded PostgreSQL in {home}" if home is not None else shown_postgres(plan.settings.database_url or "")
    say(f"  store: {store}{in_what_schema(plan.settings.schema)}")
    if plan.demo and home is not None:
        say(f"  from another terminal: duly --home {home} job list")
    work = shown_work(plan.application, plan.settings) + (f" of {plan.app_name}" if plan.app_name is not None else "")
    say(f"  worker: {work}, queues {shown_queues(plan.queues)}")
    if plan.app_name is None:
        say("  Use --app module:app to run your own tasks, or --demo for sample tasks.")
    say("  Ctrl-C stops everything.")
    say()
