"""`duly scheduler`: plans and fires until a signal. The first ends it gracefully, the second one at once."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import typer

from duly.cli.ending import ENDING_SECONDS, cancelled_by, ending_at_once, exit_code
from duly.cli.invocation import invocation_of

if TYPE_CHECKING:
    from duly.config import Settings

log = logging.getLogger("duly.cli")


def register(app: typer.Typer) -> None:
    app.command("scheduler")(scheduler)


def scheduler(context: typer.Context) -> None:
    """Run a scheduler, which leads its share of the shards and fires due jobs. Start as many as you like."""
    from duly.process import conceal, run

    conceal()
    settings = invocation_of(context).settings()
    raise typer.Exit(run(lambda: _schedule(settings)))


async def _schedule(settings: Settings) -> int:
    from duly.node import node_name, running_scheduler
    from duly.process import Signals
    from duly.store.opening import open_store

    signals = Signals()
    async with ending_at_once(signals, patience=ENDING_SECONDS), AsyncExitStack() as stack:
        async with cancelled_by(signals):
            store = await stack.enter_async_context(open_store(settings))
            await stack.enter_async_context(running_scheduler(store.pool, settings))
            log.info("scheduler %s is running", node_name())
        await signals.asked.wait()
        log.info("stopping: other schedulers take over the shards")
    return exit_code(signals)
