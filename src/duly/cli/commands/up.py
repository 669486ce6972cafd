"""`duly up`: everything with one command. The scheduler lives in this process, the API and the worker in children.

Nothing that callers of the API or handlers do can then keep the scheduler from firing on time.
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

from duly.cli.commands.worker import home_of, queues_of, shown_queues, with_commands
from duly.cli.ending import cancelled_by, ending_at_once, exit_code
from duly.cli.options import (
    AllowCommandsOption,
    AppOption,
    CommandUserOption,
    ConcurrencyOption,
    HostOption,
    OpenOption,
    PassEnvOption,
    PortOption,
    QueueOption,
)
from duly.cli.output import examples, say, styled
from duly.cli.session import Session, session_of
from duly.errors import ConfigError

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.cli.api_process import Served
    from duly.cli.children import ApiProcess
    from duly.config import Settings
    from duly.process import Signals

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
    host: HostOption = None,
    port: PortOption = None,
    concurrency: ConcurrencyOption = None,
    queue: QueueOption = None,
    allow_commands: AllowCommandsOption = False,
    command_user: CommandUserOption = None,
    pass_env: PassEnvOption = None,
    open_to_all: OpenOption = False,
) -> None:
    """Run everything: PostgreSQL if you have none, a scheduler, the API and a worker for your application.

    The link that it prints opens the live page: it holds a key, which is for you alone. Shows each run as it ends.
    Ctrl-C stops it all; a second Ctrl-C does so at once.
    """
    from duly.cli.children import ApiProcess
    from duly.process import conceal

    conceal()
    if demo and app is not None:
        raise ConfigError("--demo brings an application of its own: give --demo or --app, not both")
    session = session_of(context)
    session.refuse_url()
    # First of all: the web framework takes half a second to import. All else is loaded and started meanwhile.
    with ApiProcess() as api:
        plan = _planned(
            session,
            demo=demo,
            app=app,
            host=host,
            port=port,
            concurrency=concurrency,
            queue=queue,
            with_flags=lambda settings: with_commands(
                settings, allowed=allow_commands, user=command_user, passed=pass_env
            ).changed(open_api=open_to_all or None),
        )
        raise typer.Exit(_run(plan, api))


def _planned(
    session: Session,
    *,
    demo: bool,
    app: str | None,
    host: str | None,
    port: int | None,
    concurrency: int | None,
    queue: list[str] | None,
    with_flags: Callable[[Settings], Settings],
) -> _Plan:
    from duly.cli.loading import load_app

    session.export()
    session.settings()  # logging first: an import may want to say something
    name = DEMO_APP if demo else app
    # Here as well as in the worker: a mistake is told at once, and submits through the API know the tasks.
    application = load_app(name) if name is not None else None
    settings = with_flags(session.settings_with(application))
    return _Plan(
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


def _run(plan: _Plan, api: ApiProcess) -> int:
    from duly.process import run

    settings = plan.settings
    if plan.demo and settings.database_url is None and settings.home is None and "DULY_HOME" not in os.environ:
        # The sample jobs must not be found by whoever runs an application of their own next.
        with _passing_home() as home:
            plan = dataclasses.replace(plan, settings=settings.model_copy(update={"home": home}))
            return run(lambda: _up(plan, api))
    return run(lambda: _up(plan, api))


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


async def _up(plan: _Plan, api: ApiProcess) -> int:
    from duly.cli.api_process import Orders
    from duly.cli.children import WorkerProcesses
    from duly.local_keys import announced
    from duly.node import running_scheduler
    from duly.operations import Operations
    from duly.process import Signals
    from duly.store.opening import open_store

    settings = plan.settings
    home = home_of(settings)
    signals = Signals()
    hasten: list[Callable[[], None]] = [api.hasten]
    async with ending_at_once(signals, hasten), AsyncExitStack() as stack:
        async with _telling_of_the_end(signals), cancelled_by(signals):
            listener = stack.enter_context(await _listen(plan))
            if home is not None:
                log.info("opening the embedded PostgreSQL in %s", home)
            store = await stack.enter_async_context(open_store(settings, migrating=True))
            handlers = plan.application.tasks if plan.application is not None else {}
            # Like a worker the API is a user of the embedded PostgreSQL in its own right.
            orders = Orders(settings.model_copy(update={"home": home}), plan.host, list(handlers))
            serving = asyncio.create_task(api.serve(listener, orders))
            stack.push_async_callback(_end, api, serving)
            operations = await Operations.open(store.pool, settings, local_handlers=handlers)
            if plan.app_name is not None:
                workers = WorkerProcesses.of(
                    settings, plan.app_name, home=home, queues=plan.queues, concurrency=plan.concurrency
                )
                await workers.start()
                stack.push_async_callback(workers.stop)
                hasten.append(workers.hasten)
            await stack.enter_async_context(running_scheduler(store.pool, settings))
            served = await asyncio.shield(serving)
            stack.enter_context(announced(served.address, served.key_file))
            # The API is the first to end: it takes nothing more, and what it was asked is answered.
            stack.push_async_callback(api.stop)
            _greet(plan, served, home)
            if plan.demo:
                from duly.cli.demo import register_jobs

                await register_jobs(operations)
        await signals.asked.wait()
        say(_STOPPING, err=True)
    say("stopped", err=True)
    return exit_code(signals)


async def _end(api: ApiProcess, serving: asyncio.Task[Served]) -> None:
    """However far it has come."""
    serving.cancel()
    await asyncio.wait([serving])
    _ = serving.cancelled() or serving.exception()  # whoever wanted to know has been told
    await api.stop()


@asynccontextmanager
async def _telling_of_the_end(signals: Signals) -> AsyncIterator[None]:
    """The worker may be at work while the rest still starts, and then stopping takes a while."""
    try:
        yield
    except asyncio.CancelledError:
        if signals.asked.is_set():
            say(_STOPPING, err=True)
        raise


async def _listen(plan: _Plan) -> socket.socket:
    """Where the API is to be. Before anything is started: a port that is taken is told at once."""
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
    say(f"  store: {store}")
    if plan.demo and home is not None:
        say(f"  look at it from another terminal: duly --home {home} job list")
    if plan.application is not None:
        say(f"  worker: {len(plan.application.tasks)} tasks of {plan.app_name}, queues {shown_queues(plan.queues)}")
    else:
        say("  worker: none; give --app module:app to run your tasks, or --demo to see some")
    say("  Ctrl-C stops everything.")
    say()
