"""Targets: endpoints and programs, which a run can call instead of a Python task. Read in this order:

1. `Target`, below: the contract;
2. `command`: runs programs; `programs`: which ones a worker may start;
3. `http`: calls endpoints; `egress` decides which addresses may be reached, `connecting` connects to no others,
   `signing` signs the calls, `answers` turns an answer into the run's result or error;
4. `making`: makes the targets of a worker from its settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from duly.worker.execution import Execution
    from duly.worker.handler.task import Task


class Target(Protocol):
    """Calls one kind of target. Its exceptions decide about the run, as those of a Python task do.

    `Permanent`, `RetryAfter` and `Snooze` have their usual meaning; `Unable` returns the run for another worker. The
    call is cancelled (asyncio) on timeout, cancel, lost lease and shutdown, and must end what it started before it lets
    the cancellation through.
    """

    async def call(self, execution: Execution, target: Mapping[str, Any], payload: str) -> Any:
        """`target` is the job's handler object, `payload` its JSON text. Returns a JSON value."""
        ...

    async def close(self) -> None: ...


class Isolated(Protocol):
    """Calls Python tasks in child processes."""

    async def call(self, task: Task, execution: Execution, arguments: Mapping[str, Any]) -> Any: ...

    async def close(self) -> None: ...
