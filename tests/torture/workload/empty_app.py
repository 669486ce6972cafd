"""Another team's application: it serves the same queues and has none of the workload's tasks."""

from __future__ import annotations

from duly import Duly

app = Duly()


@app.task()
async def quite_another_task() -> None:
    """A task that is never submitted."""
