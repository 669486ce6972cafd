"""Submitting through a connection of the caller's: the job is there if the caller's transaction commits, else not.

Everything that must be known comes over that connection too (the store's shards, its time, its tasks), so no other
connection is opened, and the jobs go where the caller's transaction is, whatever `DULY_DATABASE_URL` says. That is one
question before the submit itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast
from uuid import UUID

from duly.clock import ManualClock
from duly.config import Settings
from duly.errors import Forbidden, InvalidInput
from duly.model import JobRequest
from duly.operations.rights import Rights
from duly.operations.submitting import Submitted, Submitting
from duly.store import stores
from duly.store.foreign import Joined, at_once, lacks_rights, recognise
from duly.store.migrate import check_newest
from duly.store.pool import Pool
from duly.store.tenants import UNKNOWN, KnownTenant


class Joining:
    """One application's way into transactions of its own. It remembers which tasks a store's workers have."""

    def __init__(self, settings: Settings, local_handlers: Collection[str]) -> None:
        self._settings = settings
        self._local_handlers = local_handlers
        self._handlers: dict[UUID, frozenset[str]] = {}

    def submit_many_sync(
        self, connection: object, requests: Sequence[JobRequest], *, allow_unknown_handler: bool
    ) -> list[Submitted]:
        """In the caller's thread: that is where its connection may be used."""
        if recognise(connection).asynchronous:
            raise InvalidInput("connection", "is an asynchronous one: use it with `await app.submit(…)`")
        return at_once(self.submit_many(connection, requests, allow_unknown_handler=allow_unknown_handler))

    async def submit_many(
        self, connection: object, requests: Sequence[JobRequest], *, allow_unknown_handler: bool
    ) -> list[Submitted]:
        joined = Joined(recognise(connection))
        facts = await self._facts(joined, {request.tenant for request in requests})
        check_newest(facts.version)
        submitting = _Submitting(joined, facts, self._settings, self._local_handlers, self._handlers)
        return await submitting.submit_many(requests, allow_unknown_handler=allow_unknown_handler, within=joined)

    async def _facts(self, joined: Joined, tenants: Collection[str]) -> stores.Joining:
        try:
            return await stores.joining(joined, tenants=tenants)
        except Exception as error:
            if lacks_rights(error):
                raise Forbidden(
                    "the role of this connection may not write Duly's tables: let it call duly.submit instead, which "
                    "needs one right only, or grant it what docs/sql.md says under Rights",
                    field="connection",
                ) from error
            raise


class _Submitting(Submitting):
    """One submit. Of its pool, submitting asks nothing but statements and the time."""

    def __init__(
        self,
        joined: Joined,
        facts: stores.Joining,
        settings: Settings,
        local_handlers: Collection[str],
        handlers: dict[UUID, frozenset[str]],
    ) -> None:
        joined.clock = ManualClock(facts.now)
        super().__init__(cast("Pool", joined), settings, shard_count=facts.shard_count, local_handlers=local_handlers)
        self._facts = facts
        self._handlers = handlers
        self._store_handlers = handlers.get(facts.store_id, frozenset())

    async def _known(self, asked: Collection[str]) -> dict[str, KnownTenant]:
        return {tenant: self._facts.tenants.get(tenant, UNKNOWN) for tenant in asked}

    async def _check_handlers(self, requests: Sequence[JobRequest], rights: Rights) -> None:
        try:
            await super()._check_handlers(requests, rights)
        finally:
            self._handlers[self._facts.store_id] = self._store_handlers
