"""`duly scheduler`: plans and fires until a signal. The first ends it gracefully, the second one at once."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import typer

from duly.cli.ending import ENDING_SECONDS, cancelled_by, ending_at_once, exit_code
from duly.cli.invocation import invocation_of
from duly.cli.options import HealthHostOption, HealthPortOption
from duly.cli.output import examples

if TYPE_CHECKING:
    from duly.config import Settings

log = logging.getLogger("duly.cli")


_EXAMPLES = examples(
    "duly scheduler",
    "duly scheduler --health-port 9090 --health-host 0.0.0.0",
)


def register(app: typer.Typer) -> None:
    app.command("scheduler", epilog=_EXAMPLES)(scheduler)


def scheduler(
    context: typer.Context, health_port: HealthPortOption = None, health_host: HealthHostOption = None
) -> None:
    """Run a scheduler, which leads its share of the shards and fires due jobs. Start as many as you like."""
    from duly.process import conceal, run

    conceal()
    settings = invocation_of(context).settings().changed(health_port=health_port, health_host=health_host)
    raise typer.Exit(run(lambda: _schedule(settings)))


async def _schedule(settings: Settings) -> int:
    from duly.cli.health_server import answering
    from duly.node import node_name, running_scheduler
    from duly.process import Signals
    from duly.store.opening import open_store
    from duly.vitals import Vitals

    signals = Signals()
    vitals = Vitals("scheduler", hung_seconds=settings.health_hung_seconds)
    async with ending_at_once(signals, patience=ENDING_SECONDS), AsyncExitStack() as stack:
        async with cancelled_by(signals):
            stack.enter_context(vitals.watching())
            await stack.enter_async_context(answering(vitals, settings))
            store = await stack.enter_async_context(open_store(settings))
            await stack.enter_async_context(running_scheduler(store.pool, settings, vitals=vitals))
            log.info("scheduler %s is running", node_name())
        await signals.asked.wait()
        log.info("stopping: other schedulers take over the shards")
    return exit_code(signals)
