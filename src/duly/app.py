"""The SDK: an application's tasks, and the jobs it submits."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack
from uuid import UUID
from weakref import WeakKeyDictionary

from duly.config import Settings, load_settings
from duly.errors import InvalidInput
from duly.model import (
    DEFAULT_POLICY,
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    POLICY_FIELDS,
    Actor,
    CronOptions,
    Declarer,
    JobOptions,
    JobRequest,
    Policy,
    PolicyOptions,
    each_request,
    make_request,
    os_user,
)
from duly.model.deploys import MAX_NAME, rank_of_setting, rank_of_time
from duly.worker.handler.task import Handler, Isolation, Task

if TYPE_CHECKING:
    # Imported when the store is first needed: a child process that only runs tasks loads no database driver.
    from duly.operations import Operations, StoreOperations
    from duly.operations.caller_transaction import CallerTransaction

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
#: The handler of a job: a task, its name, or a target: an object that names an HTTP endpoint or a command.
Callee = str | Callable[..., Any] | Mapping[str, Any]
#: Opens an app's store. The context is closed with the connections of the event loop that needed it.
Opening = Callable[["Duly"], AbstractAsyncContextManager["StoreOperations"]]


class Duly:
    """An application: registers tasks, submits jobs, and is what `duly worker --app` loads.

    Without arguments it uses `DULY_DATABASE_URL`, or an embedded PostgreSQL if that is unset. Connections are opened
    when first needed and belong to the event loop that needed them; `async with app:` closes them at the end.
    """

    def __init__(
        self,
        database_url: str | None = None,
        *,
        name: str | None = None,
        tenant: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        """`name`: the owner of the jobs that the code declares. One name for all processes and deploys of one app.

        `tenant`: the tenant whose jobs it submits and declares; without it the setting `tenant` (DULY_TENANT).
        """
        if name is not None and not (1 <= len(name) <= MAX_NAME and name.isprintable()):
            raise InvalidInput("name", f"must be 1 to {MAX_NAME} printable characters")
        self.name = name
        self._given_settings = settings if settings is None or tenant is None else settings.changed(tenant=tenant)
        self._given_url = database_url
        self._given_tenant = tenant
        self.tasks: dict[str, Task] = {}
        #: Jobs that the code declares (`@app.cron`); workers submit them when they start.
        self.declared: dict[str, JobRequest] = {}
        #: By key of a declared job: the keys that it had before (`renamed_from`).
        self.renamed_from: dict[str, list[str]] = {}
        self._opening: Opening = _open_operations
        self._open: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connection] = WeakKeyDictionary()
        self._bridge: _Bridge | None = None
        self._bridge_lock = threading.Lock()

    @property
    def settings(self) -> Settings:
        if self._given_settings is None:
            self._given_settings = load_settings(database_url=self._given_url, tenant=self._given_tenant)
        return self._given_settings

    @property
    def tenant(self) -> str:
        """The tenant whose jobs the application submits and declares."""
        return self.settings.tenant

    # Tasks

    def task(
        self,
        name: str | None = None,
        *,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        isolation: Isolation = "thread",
        **policy: Unpack[PolicyOptions],
    ) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
        """Registers a function as a task. Its jobs get this queue, priority and policy unless they choose others.

        `isolation="process"` runs the function in a child process, where a timeout or a cancel can kill it.
        """

        def register(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
            self._register(function, name, queue, priority, _policy(policy), isolation)
            return function

        return register

    def cron(
        self,
        schedule: str,
        *,
        name: str | None = None,
        timezone: str = "UTC",
        payload: Mapping[str, Any] | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        isolation: Isolation = "thread",
        renamed_from: str | Sequence[str] = (),
        **options: Unpack[CronOptions],
    ) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
        """Registers a task and declares its recurring job. `schedule` is cron, `every 15m` or an RRULE.

        The task's name identifies the job: changing the decorator and deploying changes the job. `renamed_from`: the
        task's earlier name or names; the job of that name is taken over with its history, its runs and its pause.
        """
        earlier = [renamed_from] if isinstance(renamed_from, str) else list(renamed_from)
        for old_name in earlier:
            if not 1 <= len(old_name) <= 190:
                raise InvalidInput("renamed_from", "must be the earlier name of the task, or several")

        def register(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
            policy = {key: value for key, value in options.items() if key in POLICY_FIELDS}
            task = self._register(function, name, queue, priority, _policy(policy), isolation)
            # The task's policy is the job's too.
            own: CronOptions = {key: value for key, value in options.items() if key not in policy}  # type: ignore[assignment]
            self.declared[task.name] = self.request(
                task.name,
                dict(payload or {}),
                schedule=schedule,
                timezone=timezone,
                dedupe_key=_declared_key(task.name),
                **own,
            )
            if earlier:
                self.renamed_from[_declared_key(task.name)] = [_declared_key(old_name) for old_name in earlier]
            return function

        return register

    def _register(
        self, function: Handler, name: str | None, queue: str, priority: int, policy: Policy, isolation: Isolation
    ) -> Task:
        task = Task(
            name or str(getattr(function, "__name__", "")),
            function,
            queue=queue,
            priority=priority,
            policy=policy,
            isolation=isolation,
        )
        if task.name in self.tasks and self.tasks[task.name].function is not function:
            raise InvalidInput("handler", f"a task {task.name!r} is registered already; give one of them another name")
        self.tasks[task.name] = task
        return task

    # Submitting

    def request(
        self,
        task: Callee,
        payload: Any = None,
        *,
        run_at: datetime | None = None,
        schedule: str | datetime | None = None,
        **options: Unpack[JobOptions],
    ) -> JobRequest:
        """The request that `submit` would send. The defaults of a task of this app are in it.

        Those of another task come from the offers of the workers that have it, when the job is stored.
        """
        handler = self._handler_of(task)
        known = self.tasks.get(handler) if isinstance(handler, str) else None
        if known is None:
            return make_request(handler, payload, run_at, schedule, options, {})
        own = {"queue": known.queue, "priority": known.priority}
        return make_request(handler, payload, run_at, schedule, options, own, known.policy, POLICY_FIELDS)

    async def submit(
        self,
        task: Callee,
        payload: Any = None,
        *,
        run_at: datetime | None = None,
        schedule: str | datetime | None = None,
        allow_unknown_handler: bool = False,
        connection: object = None,
        **options: Unpack[JobOptions],
    ) -> str:
        """Submits a job and returns its id. Without `run_at` or `schedule` it runs now.

        `connection`: your own, with a transaction open, so that the job exists if you commit and not if you roll back.
        It may be asyncpg's, psycopg's, psycopg2's, SQLAlchemy's (also a session) or Django's.
        """
        request = self.request(task, payload, run_at=run_at, schedule=schedule, **options)
        if connection is not None:
            joined = await self._caller_transaction.submit_many(
                connection, [request], allow_unknown_handler=allow_unknown_handler
            )
            return str(joined[0].job_id)
        return await self._submit(request, allow_unknown_handler)

    async def _submit(self, request: JobRequest, allow_unknown_handler: bool) -> str:
        operations = await self.operations()
        # Not `operations.submit`, which reads the whole job back.
        submitted = await operations.submit_many([request], allow_unknown_handler=allow_unknown_handler)
        return str(submitted[0].job_id)

    async def submit_many(
        self, requests: Sequence[JobRequest | Mapping[str, Any]], *, connection: object = None
    ) -> list[str]:
        """Submits many jobs in few statements and returns their ids. All are checked before any is stored.

        Each is made by `request`, or is a mapping of its arguments: `{"handler": "send", "payload": {…}}`.
        """
        made = each_request(requests, lambda handler, fields: self.request(handler, **fields))
        if connection is not None:
            submitted = await self._caller_transaction.submit_many(connection, made, allow_unknown_handler=False)
        else:
            submitted = await (await self.operations()).submit_many(made)
        return [str(one.job_id) for one in submitted]

    def submit_sync(
        self,
        task: Callee,
        payload: Any = None,
        *,
        run_at: datetime | None = None,
        schedule: str | datetime | None = None,
        allow_unknown_handler: bool = False,
        connection: object = None,
        **options: Unpack[JobOptions],
    ) -> str:
        """`submit` for code without an event loop."""
        request = self.request(task, payload, run_at=run_at, schedule=schedule, **options)
        if connection is not None:
            joined = self._caller_transaction.submit_many_sync(
                connection, [request], allow_unknown_handler=allow_unknown_handler
            )
            return str(joined[0].job_id)
        with self._bridge_lock:
            if self._bridge is None:
                self._bridge = _Bridge()
        return str(self._bridge.call(self._submit(request, allow_unknown_handler)))

    @cached_property
    def _caller_transaction(self) -> CallerTransaction:
        from duly.operations.caller_transaction import CallerTransaction

        return CallerTransaction(self.settings, self.tenant, self.tasks.keys(), self._actor())

    def _actor(self) -> Actor:
        """Who acts, for the audit trail."""
        return Actor("sdk", os_user() if self.name is None else f"{self.name}, {os_user()}")

    async def declare(self) -> list[UUID]:
        """Submits the jobs that the code declares, and changes those whose declaration has changed.

        A deploy that is older than the last one that declared a job does not change it.
        """
        operations = await self.operations()
        declared = await operations.declare_all(
            list(self.declared.values()), self.declarer(self.settings), self.renamed_from
        )
        return [one.job_id for one in declared if one.job_id is not None]

    def declarer(self, settings: Settings) -> Declarer:
        """This application and its deploy: the setting `deploy`, or the newest time of the files of its code."""
        keys = frozenset(request.dedupe_key or "" for request in self.declared.values())
        if settings.deploy is not None:
            return Declarer(self.name or "", settings.deploy, rank_of_setting(settings.deploy), keys)
        rank = rank_of_time(newest) if (newest := self._newest_file()) is not None else ""
        return Declarer(self.name or "", rank[1:] or None, rank, keys)

    def _newest_file(self) -> datetime | None:
        """The newest time of the files of the packages, or single modules, that the tasks are in."""
        files: set[Path] = set()
        for task in self.tasks.values():
            module = sys.modules.get(str(getattr(task.function, "__module__", "")))
            own = getattr(module, "__file__", None)
            if module is None or own is None:
                continue
            top = sys.modules.get(module.__name__.partition(".")[0])
            folders = [Path(folder) for folder in getattr(top, "__path__", ())]
            files.update([Path(own)] if not folders else (path for folder in folders for path in folder.rglob("*.py")))
        times = []
        for path in files:
            with suppress(OSError):
                times.append(path.stat().st_mtime)
        return datetime.fromtimestamp(max(times), UTC) if times else None

    def _handler_of(self, task: Callee) -> str | Mapping[str, Any]:
        if isinstance(task, str) or isinstance(task, Mapping):  # noqa: SIM101 - a string is quicker to recognise
            return task
        for name, known in self.tasks.items():
            if known.function is task:
                return name
        shown = getattr(task, "__name__", repr(task))
        raise InvalidInput("handler", f"{shown} is not a task of this app; decorate it with @app.task()")

    # Connections

    async def operations(self) -> Operations:
        """The layer beneath, connected, for this event loop."""
        loop = asyncio.get_running_loop()
        connection = self._open.get(loop)
        if connection is None:
            connection = self._open[loop] = _Connection(self._opening)
        return await connection.operations(self)

    def redirect(self, opening: Opening) -> Callable[[], None]:
        """Use the store that `opening` opens instead, until the returned function is called. For `duly.testing`."""
        before = self._opening, self._open
        self._opening, self._open = opening, WeakKeyDictionary()

        def restore() -> None:
            self._opening, self._open = before

        return restore

    async def close(self) -> None:
        """Close this event loop's connections."""
        if (connection := self._open.pop(asyncio.get_running_loop(), None)) is not None:
            await connection.close()

    def close_sync(self) -> None:
        """Closes the connections that `submit_sync` opened."""
        with self._bridge_lock:
            bridge, self._bridge = self._bridge, None
        if bridge is not None:
            bridge.call(self.close())
            bridge.stop()

    async def __aenter__(self) -> Duly:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@asynccontextmanager
async def _open_operations(app: Duly) -> AsyncIterator[StoreOperations]:
    from duly.operations import StoreOperations
    from duly.store.opening import open_store

    async with open_store(app.settings) as store:
        yield await StoreOperations.open(store.pool, app.settings, local_handlers=app.tasks.keys(), actor=app._actor())


class _Connection:
    """The store's connections of one event loop."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._stack = AsyncExitStack()
        self._lock = asyncio.Lock()
        self._operations: Operations | None = None

    async def operations(self, app: Duly) -> Operations:
        async with self._lock:
            if self._operations is None:
                store = await self._stack.enter_async_context(self._opening(app))
                self._operations = store.for_tenant(app.tenant)
        return self._operations

    async def close(self) -> None:
        await self._stack.aclose()


class _Bridge:
    """An event loop in a thread of its own, for callers without an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="duly-sync", daemon=True)
        self._thread.start()

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _policy(options: Mapping[str, Any]) -> Policy:
    if unknown := options.keys() - POLICY_FIELDS:
        raise InvalidInput(min(unknown), "is not a policy of a job")
    return Policy(**options) if options else DEFAULT_POLICY


def _declared_key(task: str) -> str:
    return f"declared:{task}"
