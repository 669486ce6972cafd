"""The start of every command: global options, settings, logging, and an open store or API.

Heavy modules are imported only by the commands that need them, so that `duly --help` answers at once.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from duly.cli.output import say
from duly.errors import ConfigError, NotFound
from duly.logs import set_up_logging

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.cli.backend import Backend, Remote
    from duly.config import Settings
    from duly.operations import Operations, StoreOperations

T = TypeVar("T")
# Time for which a command waits for an API that does not answer: it may be restarting, or the address may be wrong.
_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Invocation:
    """The global options of one invocation. None: not given; the environment and `duly.toml` decide."""

    database_url: str | None = field(default=None, repr=False)
    home: Path | None = None
    log_level: str | None = None
    url: str | None = field(default=None, repr=False)
    schema: str | None = None
    tenant: str | None = None
    log_format: str | None = None

    @property
    def remote_url(self) -> str | None:
        """The address of the API to use; None for a store. A flag that names a store wins over DULY_URL."""
        if self.url is not None and self._names_a_store:
            raise ConfigError(
                "--url names an API, and --database-url, --home or --schema a store: omit --url or the others"
            )
        if self._names_a_store:
            return None
        address = self.url or os.environ.get("DULY_URL") or None
        if address is not None and self.tenant is not None:
            raise ConfigError(
                "--tenant is for commands that open the store themselves; through an API (--url, DULY_URL) the key "
                "decides: use a key of that tenant, or name the store by --database-url or --home"
            )
        return address

    @property
    def _names_a_store(self) -> bool:
        return any(given is not None for given in (self.database_url, self.home, self.schema))

    def set_up_logging(self) -> None:
        """Set up logging; also for commands that need no store."""
        if self.remote_url is None:
            self.settings()
        else:
            set_up_logging(
                self.log_level or os.environ.get("DULY_LOG_LEVEL") or "INFO",
                self.log_format or os.environ.get("DULY_LOG_FORMAT") or "text",
            )

    def refuse_url(self) -> None:
        """For commands that cannot use an API. DULY_URL is ignored: it is meant for the other commands."""
        if self.url is not None:
            raise ConfigError(
                "this command works on the store itself and not through an API: omit --url, and name the store by "
                "--database-url or DULY_DATABASE_URL"
            )

    def settings(self) -> Settings:
        """The settings of this invocation. Also sets up logging, because the log level is one of them."""
        settings = self._load()
        set_up_logging(settings.log_level, settings.log_format)
        return settings

    def _load(self) -> Settings:
        from duly.config import load_settings

        self.refuse_url()
        if self.database_url is not None and self.home is not None:
            raise ConfigError(
                "--home is for the embedded PostgreSQL and --database-url names another: give one of them"
            )
        settings = load_settings(
            database_url=self.database_url,
            home=self.home,
            schema=self.schema,
            tenant=self.tenant,
            log_level=self.log_level,
            log_format=self.log_format,
        )
        if self.home is not None:
            # --home means the PostgreSQL in that folder, even if the environment names another.
            settings = settings.model_copy(update={"database_url": None})
        return settings

    def settings_with(self, application: Duly | None) -> Settings:
        """The settings for a command about an application, whose code may name its own store and tenant."""
        if application is None:
            return self.settings()
        settings = self._load()  # logging is set up already: the application may have configured its own since
        tenant = application.tenant if self.tenant is None else self.tenant
        if self.database_url is not None or self.home is not None:
            return settings.model_copy(update={"tenant": tenant})
        given = {"log_level": settings.log_level, "log_format": settings.log_format, "tenant": tenant}
        given |= {} if self.schema is None else {"schema": self.schema}
        return application.settings.model_copy(update=given)

    def check_tenant(self, application: Duly) -> None:
        """Refuse a tenant that the code of a running application contradicts: its handlers submit for the code's."""
        if self.tenant is not None and application.tenant != self.tenant:
            raise ConfigError(
                f"--tenant {self.tenant}: the application's code names the tenant {application.tenant!r} "
                "(Duly(tenant=…)), for which its handlers submit: omit --tenant, or leave the tenant out of the code"
            )

    def export(self) -> None:
        """Put the chosen store and tenant into the environment, so that the user's application uses the same."""
        if self.tenant is not None:
            os.environ["DULY_TENANT"] = self.tenant
        if self.schema is not None:
            os.environ["DULY_SCHEMA"] = self.schema
        if self.home is not None:
            os.environ.pop("DULY_DATABASE_URL", None)
            os.environ["DULY_HOME"] = str(self.home)
        elif self.database_url is not None:
            os.environ["DULY_DATABASE_URL"] = self.database_url


def invocation_of(context: typer.Context) -> Invocation:
    return context.find_object(Invocation) or Invocation()


def with_operations(
    context: typer.Context,
    work: Callable[[Backend], Awaitable[T]],
    *,
    application: Duly | None = None,
    is_empty: Callable[[T], bool] = lambda _: False,
) -> T:
    """Run `work` through the API if its address is given, else on the store itself.

    On the store itself, an answer that `is_empty`, or that something does not exist, comes with a hint if it is another
    tenant that has jobs.
    """
    invocation = invocation_of(context)
    if invocation.remote_url is not None:
        return with_remote(context, work)

    async def with_hints(operations: StoreOperations) -> T:
        tenant, neighbours = operations.settings.tenant, operations.neighbours
        try:
            answer = await work(own_tenant(operations))
        except NotFound as error:
            hint = await neighbours.of_missing(error, tenant)
            raise NotFound(f"{error}; {hint}") if hint is not None else error from error.__cause__
        if is_empty(answer) and (hint := await neighbours.of_empty(tenant)) is not None:
            say(hint, err=True)
        return answer

    return with_store(context, with_hints, application=application)


def own_tenant(operations: StoreOperations) -> Operations:
    """The operations of a command that opens the store itself: those of the tenant of its settings."""
    return operations.for_tenant(operations.settings.tenant)


def with_remote(context: typer.Context, work: Callable[[Remote], Awaitable[T]]) -> T:
    """Run `work` through the API."""
    invocation = invocation_of(context)
    invocation.set_up_logging()

    async def connected() -> T:
        from duly.cli.backend import Remote
        from duly.client import AsyncClient

        async with AsyncClient(invocation.remote_url, patience=_PATIENCE_SECONDS) as client:
            return await work(Remote(client))

    import asyncio

    return asyncio.run(connected())


def with_store(
    context: typer.Context, work: Callable[[StoreOperations], Awaitable[T]], *, application: Duly | None = None
) -> T:
    """Run `work` on the store, which is opened, checked for its version, and closed again."""
    settings = invocation_of(context).settings_with(application)
    tasks = application.tasks if application is not None else ()

    async def connected() -> T:
        from duly.model import Actor, os_user
        from duly.operations import StoreOperations
        from duly.store.opening import open_store

        async with open_store(settings) as store:
            operations = await StoreOperations.open(
                store.pool, settings, local_handlers=tasks, actor=Actor("cli", os_user())
            )
            return await work(operations)

    from duly.process import run

    return run(connected)
