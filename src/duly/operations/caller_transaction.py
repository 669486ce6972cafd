"""Submitting through a connection of the caller's: the job is there if the caller's transaction commits, else not.

Everything that must be known comes over that connection too (the store's shards, its time, its tasks), so no other
connection is opened, and the jobs go where the caller's transaction is, whatever `DULY_DATABASE_URL` says. That is one
question before the submit itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import cast
from uuid import UUID

from duly.clock import ManualClock
from duly.config import Settings
from duly.errors import Forbidden, InvalidInput
from duly.model import Actor, JobRequest, SubmittedId
from duly.operations.core import Core
from duly.operations.submits import SubmitOperations
from duly.store import stores
from duly.store.foreign import Joined, at_once, lacks_rights, recognise
from duly.store.pool import Pool
from duly.store.steps import check_min_version, this_release
from duly.store.tenants import UNKNOWN


class CallerTransaction:
    """One application's way into transactions of its own. It remembers which tasks a store's workers have."""

    def __init__(self, settings: Settings, tenant: str, local_handlers: Collection[str], actor: Actor) -> None:
        self._actor = actor
        self._settings = settings
        self._tenant = tenant
        self._local_handlers = local_handlers
        self._handlers: dict[UUID, frozenset[str]] = {}

    def submit_many_sync(
        self, connection: object, requests: Sequence[JobRequest], *, allow_unknown_handler: bool
    ) -> list[SubmittedId]:
        """`submit_many` in the caller's thread, the only one in which its connection may be used."""
        if recognise(connection).asynchronous:
            raise InvalidInput("connection", "is an asynchronous one: use it with `await app.submit(…)`")
        return at_once(self.submit_many(connection, requests, allow_unknown_handler=allow_unknown_handler))

    async def submit_many(
        self, connection: object, requests: Sequence[JobRequest], *, allow_unknown_handler: bool
    ) -> list[SubmittedId]:
        joined = Joined(recognise(connection), self._settings.schema)
        facts = await self._facts(joined, requests)
        check_min_version(facts.min_version, this_release())
        joined.steps = facts.steps
        joined.clock = ManualClock(facts.now)
        # Of its pool, a submit asks nothing but statements and the time.
        core = Core(
            cast("Pool", joined),
            self._settings,
            shard_count=facts.shard_count,
            local_handlers=self._local_handlers,
            actor=self._actor,
        )
        core.store_handlers = self._handlers.get(facts.store_id, frozenset())
        core.offered = facts.offered
        core.believe(self._tenant, facts.tenants.get(self._tenant, UNKNOWN), until=math.inf)
        submits = SubmitOperations(core, self._tenant, core.actor)
        try:
            return await submits.submit_many(requests, allow_unknown_handler=allow_unknown_handler, within=joined)
        finally:
            self._handlers[facts.store_id] = core.store_handlers

    async def _facts(self, joined: Joined, requests: Sequence[JobRequest]) -> stores.TransactionFacts:
        tasks = {one.handler for one in requests if isinstance(one.handler, str) and not one.is_complete}
        try:
            return await stores.transaction_facts(joined, tenants={self._tenant}, tasks=tasks)
        except Exception as error:
            if lacks_rights(error):
                raise Forbidden(
                    "the role of this connection may not write Duly's tables: let it call duly.submit instead, which "
                    "needs one right only, or grant it what docs/sql.md says under Rights",
                    field="connection",
                ) from error
            raise
