"""Somebody else's application: it serves the same queues and has none of the tasks."""

from __future__ import annotations

from duly import Duly

app = Duly()


@app.task()
async def quite_another_task() -> None:
    """Nobody ever submits it."""
