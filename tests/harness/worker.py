"""An app, its operations and a worker in this process, for tests of what workers do with runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from duly import Duly
from duly.config import Settings
from duly.model import ClaimedRun, Run
from duly.node import running_worker
from duly.operations import Operations
from duly.store.pool import Pool
from duly.worker.executor import Outcome
from duly.worker.worker import Worker
from harness.waiting import eventually


class Workbench:
    """An app and its operations over one store, and a worker that runs inside `working()`."""

    def __init__(self, pool: Pool, settings: Settings, operations: Operations, app: Duly | None = None) -> None:
        self.pool = pool
        self.settings = settings
        self.operations = operations
        self.app = app or Duly(settings=settings)
        #: Every attempt that has ended, with its outcome (None: the run was given up).
        self.ended: asyncio.Queue[tuple[ClaimedRun, Outcome | None]] = asyncio.Queue()

    @asynccontextmanager
    async def working(self, **options: Any) -> AsyncIterator[Worker]:
        options.setdefault("observer", lambda run, outcome: self.ended.put_nowait((run, outcome)))
        async with running_worker(self.pool, self.app.tasks, self.settings, **options) as worker:
            yield worker

    async def submit(
        self, task: str | Callable[..., Any] | Mapping[str, Any], payload: Any = None, **options: Any
    ) -> str:
        request = self.app.request(task, payload, **options)
        return str((await self.operations.submit(request, allow_unknown_handler=True)).job_id)

    async def command(self, *argv: str, payload: Any = None, **options: Any) -> str:
        handler: dict[str, Any] = {"type": "command", "argv": list(argv)}
        handler |= {name: options.pop(name) for name in ("env", "secret_env", "cwd") if name in options}
        return await self.submit(handler, payload, **options)

    async def run_of(self, job_id: str) -> Run:
        """The job's latest run as it is now."""
        return (await self.operations.runs.page(job_id)).items[0]

    async def end_of(self, job_id: str, *statuses: str, seconds: float = 30) -> Run:
        """The job's latest run once it has one of these statuses; by default succeeded or dead."""

        async def ended() -> bool:
            return (await self.run_of(job_id)).status in (statuses or ("succeeded", "dead"))

        try:
            await eventually(ended, seconds=seconds)
        except TimeoutError:
            raise AssertionError(f"the run has not ended: {await self.run_of(job_id)}") from None
        return await self.run_of(job_id)

    async def succeeded(self, job_id: str) -> Run:
        """The job's latest run once it has succeeded."""
        return await self.end_of(job_id, "succeeded")

    async def attempt_of(self, job_id: str, *, attempts: int = 1) -> Run:
        """The job's latest run once `attempts` more attempts of it have ended and the last one is recorded."""

        async def is_recorded() -> bool:
            return (await self.run_of(job_id)).status != "running"

        async with asyncio.timeout(20):
            while attempts:
                run, _ = await self.ended.get()
                attempts -= str(run.job_id) == job_id
        await eventually(is_recorded)
        return await self.run_of(job_id)


async def wait_idle(worker: Worker) -> None:
    """Waits until every run that the worker has claimed is finished and recorded."""
    await worker._idle.wait()


async def turns(count: int = 5) -> None:
    """Waits until the loop has run the callbacks of its next `count` turns."""
    for _ in range(count):
        await asyncio.sleep(0)
