"""What a run can call besides a Python task: an HTTP endpoint, a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from duly.worker.execution import Execution
    from duly.worker.handler.task import Task


class Target(Protocol):
    """Calls one kind of target. What it raises decides what becomes of the run, as with a Python task.

    `Permanent`, `RetryAfter` and `Snooze` mean what they mean everywhere; `Unable` gives the run back for another
    worker. It is cancelled (asyncio) on timeout, cancel, lost lease and shutdown, and must end what it started before
    it lets the cancellation through.
    """

    async def call(self, execution: Execution, target: Mapping[str, Any], payload: str) -> Any:
        """`target` is the job's handler object, `payload` its JSON text. Returns what JSON can say."""
        ...

    async def close(self) -> None: ...


class Isolated(Protocol):
    """Calls Python tasks in child processes."""

    async def call(self, task: Task, execution: Execution, arguments: Mapping[str, Any]) -> Any: ...

    async def close(self) -> None: ...
