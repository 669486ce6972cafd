"""`duly up`: everything with one command. Store, scheduler and API live in this process, the worker in a child."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duly.cli.output import examples
from duly.cli.run import (
    AllowCommandsOption,
    AppOption,
    ConcurrencyOption,
    QueueOption,
    cancelled_by,
    ending_at_once,
    exit_code,
    home_of,
    queues_of,
    shown_queues,
)
from duly.cli.session import session_of
from duly.errors import ConfigError

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.config import Settings
    from duly.node import Signals
    from duly.operations import Operations

log = logging.getLogger("duly.cli")

DEMO_APP = "duly.cli.demo:app"
_STOPPING = "stopping; running handlers may finish (Ctrl-C again ends them)"
# How many ports after a taken one are tried.
PORTS_TRIED = 50

_EXAMPLES = examples(
    "duly up --demo",
    "duly up --app myproject.jobs:app --concurrency 20",
    "DULY_DATABASE_URL=postgresql://user@host/name duly up --app myproject.jobs:app --port 9000",
)


def register(app: typer.Typer) -> None:
    app.command("up", epilog=_EXAMPLES)(up)


def up(
    context: typer.Context,
    demo: Annotated[bool, typer.Option("--demo", help="Run a few sample jobs, to see what Duly does.")] = False,
    app: AppOption = None,
    host: Annotated[str | None, typer.Option(help="Address to serve on (DULY_HOST).", metavar="HOST")] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port to serve on (DULY_PORT); 0: any free one.", min=0, max=65535, metavar="PORT"),
    ] = None,
    concurrency: ConcurrencyOption = None,
    queue: QueueOption = None,
    allow_commands: AllowCommandsOption = False,
) -> None:
    """Run everything: PostgreSQL if you have none, a scheduler, the API and a worker for your application.

    Shows each run as it ends. Ctrl-C stops it all; a second Ctrl-C does so at once.
    """
    from duly import node
    from duly.cli.loading import load_app

    if demo and app is not None:
        raise ConfigError("--demo brings an application of its own: give --demo or --app, not both")
    session = session_of(context)
    session.export()
    session.settings()  # logging first: an import may want to say something
    name = DEMO_APP if demo else app
    # Here as well as in the worker: a mistake is told at once, and submits through the API know the tasks.
    application = load_app(name) if name is not None else None
    settings = session.settings_with(application)
    if allow_commands:
        settings = settings.model_copy(update={"allow_commands": True})
    plan = _Plan(
        settings=settings,
        application=application,
        app_name=name,
        demo=demo,
        host=host or settings.host,
        port=settings.port if port is None else port,
        port_is_chosen=port is not None or "port" in settings.model_fields_set,
        concurrency=concurrency,
        queues=queues_of(application, queue) if application is not None else {},
    )
    if demo and settings.database_url is None and settings.home is None and "DULY_HOME" not in os.environ:
        # The sample jobs must not be found by whoever runs an application of their own next.
        with _passing_home() as home:
            plan = dataclasses.replace(plan, settings=settings.model_copy(update={"home": home}))
            code = node.run(lambda: _up(plan))
        raise typer.Exit(code)
    raise typer.Exit(node.run(lambda: _up(plan)))


@contextmanager
def _passing_home() -> Iterator[Path]:
    """A home for one demo, gone with it."""
    home = Path(tempfile.mkdtemp(prefix="duly-demo-"))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the command line and the settings came to."""

    settings: Settings
    application: Duly | None
    app_name: str | None
    demo: bool
    host: str
    port: int
    port_is_chosen: bool
    concurrency: int | None
    queues: dict[str, int]


async def _up(plan: _Plan) -> int:
    from duly.cli.children import WorkerProcesses
    from duly.node import Signals, running_scheduler
    from duly.operations import Operations
    from duly.store.opening import open_store

    settings = plan.settings
    home = home_of(settings)
    signals = Signals()
    hasten: list[Callable[[], None]] = []
    # The web framework takes half a second to import; PostgreSQL starts meanwhile.
    importing = asyncio.create_task(asyncio.to_thread(_import_server))
    importing.add_done_callback(lambda task: task.cancelled() or task.exception())  # if nobody comes to ask for it
    async with ending_at_once(signals, hasten), AsyncExitStack() as stack:
        async with _telling_of_the_end(signals), cancelled_by(signals):
            if home is not None:
                log.info("opening the embedded PostgreSQL in %s", home)
            store = await stack.enter_async_context(open_store(settings, migrating=True))
            handlers = plan.application.tasks if plan.application is not None else ()
            operations = await Operations.open(store.pool, settings, local_handlers=handlers)
            if plan.app_name is not None:
                workers = WorkerProcesses.of(
                    settings, plan.app_name, home=home, queues=plan.queues, concurrency=plan.concurrency
                )
                await workers.start()
                stack.push_async_callback(workers.stop)
                hasten.append(workers.hasten)
            await stack.enter_async_context(running_scheduler(store.pool, settings))
            address = await stack.enter_async_context(_serving(await importing, operations, plan, signals))
            _greet(plan, address, home)
            if plan.demo:
                from duly.cli.demo import register_jobs

                await register_jobs(operations)
        await signals.asked.wait()
        typer.echo(_STOPPING, err=True)
    typer.echo("stopped", err=True)
    return exit_code(signals)


@asynccontextmanager
async def _telling_of_the_end(signals: Signals) -> AsyncIterator[None]:
    """The worker may be at work while the rest still starts, and then stopping takes a while."""
    try:
        yield
    except asyncio.CancelledError:
        if signals.asked.is_set():
            typer.echo(_STOPPING, err=True)
        raise


# The API


def _import_server() -> Any:
    return importlib.import_module("duly.api.server")


@asynccontextmanager
async def _serving(server: Any, operations: Operations, plan: _Plan, signals: Signals) -> AsyncIterator[str]:
    """The API while it answers; yields its address."""
    port = plan.port if plan.port_is_chosen else _next_free_port(plan.host, plan.port)
    if port != plan.port:
        log.warning("port %d is taken; using %d", plan.port, port)
    stop = asyncio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def started(address: str) -> None:
        if not ready.done():
            ready.set_result(address)

    serving: Coroutine[Any, Any, None] = server.serve(
        server.create_app(operations), host=plan.host, port=port, started=started, stop=stop
    )
    task = asyncio.create_task(serving)
    try:
        waited_for: tuple[asyncio.Future[Any], ...] = (task, ready)
        await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
            raise ConfigError("the API ended before it answered")
        # From now on a server that ends by itself ends the command; its error, if it has one, is told below.
        task.add_done_callback(lambda _: signals.asked.set())
        yield ready.result()
    finally:
        stop.set()
        ready.cancel()
        await task


def _next_free_port(host: str, port: int) -> int:
    for candidate in range(port, min(port + PORTS_TRIED, 65536)):
        if candidate == 0 or _is_free(host, candidate):
            return candidate
    return port


def _is_free(host: str, port: int) -> bool:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.create_server(address[:2], family=family):
            return True
    except PermissionError:
        return True  # not taken, but not ours either: the server will say so
    except socket.gaierror:
        return True
    except OSError:
        return False


def _greet(plan: _Plan, address: str, home: Path | None) -> None:
    from duly.store.pool import shown_url

    typer.echo()
    typer.echo(f"  {typer.style('Duly is up', bold=True)}: {typer.style(address, fg='cyan', bold=True)}")
    store = f"embedded PostgreSQL in {home}" if home is not None else shown_url(plan.settings.database_url or "")
    typer.echo(f"  store: {store}")
    if plan.demo and home is not None:
        typer.echo(f"  look at it from another terminal: duly --home {home} job list")
    if plan.application is not None:
        typer.echo(
            f"  worker: {len(plan.application.tasks)} tasks of {plan.app_name}, queues {shown_queues(plan.queues)}"
        )
    else:
        typer.echo("  worker: none; give --app module:app to run your tasks, or --demo to see some")
    typer.echo("  Ctrl-C stops everything.")
    typer.echo()
