"""PostgreSQL roles that may submit by SQL, each bound to one tenant. See docs/sql.md."""

from __future__ import annotations

from duly import checks
from duly.errors import DataRefused, InvalidInput, NotFound
from duly.operations.core import Core
from duly.store import submitters
from duly.store.submitters import Submitter

# PostgreSQL cuts longer names, and the cut name may be another role's.
_MAX_NAME_BYTES = 63


class SubmitterOperations:
    """PostgreSQL roles that may call `duly.submit`."""

    def __init__(self, core: Core) -> None:
        self._pool = core.pool
        self._actor = core.actor

    async def add(self, role: str, *, tenant: str, commands: bool = False) -> None:
        """Lets a role submit for this tenant, by `duly.submit` only. A second call replaces tenant and `commands`."""
        _check_role(role)
        checks.check_text("tenant", tenant, longest=100)
        try:
            await submitters.allow(self._pool, role=role, tenant=tenant, commands=commands, note=self._actor.note())
        except DataRefused as error:
            raise InvalidInput("role", str(error).removeprefix(f"{self._pool.schema}.allow_submit: role: ")) from error

    async def remove(self, role: str) -> None:
        _check_role(role)
        if not await submitters.disallow(self._pool, role=role, note=self._actor.note()):
            raise NotFound(f"role {role!r} is bound to no tenant; see: duly submitter list")

    async def all(self) -> list[Submitter]:
        return await submitters.list_all(self._pool)


def _check_role(role: str) -> None:
    checks.check_text("role", role, longest=_MAX_NAME_BYTES)
    if len(role.encode()) > _MAX_NAME_BYTES:
        raise InvalidInput("role", f"must have at most {_MAX_NAME_BYTES} bytes")
