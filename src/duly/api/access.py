"""API keys: the tenant, role and request rate of each caller. `guard.py` calls it for every request.

Every call under `/api/v1` needs a key: one of the store, or the local key (`local_keys.py`), which stands for the user
who started this server and counts as `admin` of the default tenant. An address proves nothing: behind a proxy every
caller comes from loopback. An API that was opened on purpose (`open_api`) needs no key while the store has none; it
takes no commands. The roles:

- `read`: read everything of its own tenant, and preview schedules
- `write`: also everything about jobs, runs and dead letters, except submitting and changing commands
- `operator`: commands too
- `admin`: also figures of the whole store instead of its own tenant
- `monitor`: those figures and nothing else

No other caller sees another tenant's data: the tenant comes from the key and from nothing else. Each route declares the
role it needs (`needs`), the router checks it before the route is called, and a route that declares none cannot be
added.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request

from duly.api.problems import Problem
from duly.local_keys import LocalKey
from duly.model import DEFAULT_TENANT, Actor, os_user
from duly.operations import Operations, StoreOperations
from duly.operations.keys import Principal
from duly.operations.rights import ROLES, Role, holds
from duly.rates import TokenBucket

# Both act for the tenant of the user who started the server (the setting `tenant`).
#: The caller of an open server.
ANYBODY = Principal(key_id="", tenant=DEFAULT_TENANT, role="admin", requests_per_second=None, anybody=True)
#: The caller that has the local key.
ITS_USER = Principal(key_id="local", tenant=DEFAULT_TENANT, role="admin", requests_per_second=None)

# Seconds for which a server may serve without keys after the first key was created.
_LOOK_SECONDS = 1.0
# Malformed tokens are rejected without a query.
_TOKEN = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/=-]{1,200}) *")
_MAX_BUCKETS = 10_000
#: Names the person for whom a trusted front end calls. Only keys of the role operator or admin may send it.
ACTOR = "X-Duly-Actor"
#: A name of the request that its sender chooses; the audit trail keeps it.
REQUEST_ID = "X-Request-Id"
_ACTOR = re.compile(r"[!-~\xa1-\xff]([ -~\xa0-\xff]{0,198}[!-~\xa1-\xff])?")


class Access:
    """API-key check and rate limit of one server."""

    def __init__(
        self,
        operations: StoreOperations,
        *,
        local_key: LocalKey | None = None,
        open_to_all: bool = False,
        require_keys: bool = False,
    ) -> None:
        """`open_to_all`: no key is needed until the store has one. `require_keys`: keys of the store only."""
        self._operations = operations
        self._local_key = None if require_keys else local_key
        self._open = open_to_all and not require_keys
        tenant = operations.settings.tenant
        self._anybody, self._its_user = replace(ANYBODY, tenant=tenant), replace(ITS_USER, tenant=tenant)
        self._keyed = require_keys
        self._look_again_at = 0.0
        self._looking = asyncio.Lock()
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    @property
    def known_to_be_needed(self) -> bool:
        """Whether a key of any kind is needed, as far as is known without asking the store."""
        return self._keyed or not self._open

    @property
    def known_to_have_keys(self) -> bool:
        """Whether the store has keys, as far as is known without asking it."""
        return self._keyed

    def require_keys(self) -> None:
        """Accept only keys of the store from now on, even if it has none."""
        self._keyed = True
        self._local_key = None

    async def has_keys(self) -> bool:
        """Whether the store has keys. Once it has, that stays so: revoking the last key must not open the door."""
        if self._keyed or time.monotonic() < self._look_again_at:
            return self._keyed
        async with self._looking:
            # Another request may have asked while this one waited.
            if time.monotonic() >= self._look_again_at:
                self._keyed = await self._operations.keys.exist()
                self._look_again_at = time.monotonic() + _LOOK_SECONDS
        return self._keyed

    async def admit(self, headers: Headers, address: str | None = None) -> tuple[Principal, Operations]:
        """The caller, who has this address, and the operations of its tenant; or a `Problem`. No route binds a tenant
        by itself."""
        who = await self._identify(headers)
        return who, self._operations.for_tenant(who.tenant, _actor(who, headers, address))

    async def _identify(self, headers: Headers) -> Principal:
        given = headers.getlist("authorization")
        if not given:
            if self._open and not await self.has_keys():
                return self._anybody
            raise _refused(f"give an API key: Authorization: Bearer KEY ({self._how_to_get_one()})")
        match = _TOKEN.fullmatch(given[0]) if len(given) == 1 else None
        if match is not None and self._local_key is not None and self._local_key.opens(match[1]):
            return self._its_user
        # Before `has_keys`, whose answer may be a second old: the first key is valid from its first call on.
        principal = await self._operations.keys.authenticate(match[1]) if match is not None else None
        if principal is None:
            if self._open and not await self.has_keys():
                return self._anybody
            raise _refused("this API key is unknown or revoked", error="invalid_token")
        self._count(principal)
        return principal

    def _how_to_get_one(self) -> str:
        if self._local_key is None:
            return "made by: duly key create"
        return (
            "DULY_API_KEY, made by: duly key create; or run it as the user who started this server, for whom clients "
            "find the local key, and the page opens by the link that was printed"
        )

    def _count(self, principal: Principal) -> None:
        rate = principal.requests_per_second
        if rate is None:
            return
        bucket = self._buckets.get(principal.key_id)
        if bucket is None or bucket.per_second != rate:
            bucket = self._buckets[principal.key_id] = TokenBucket(rate)
        self._buckets.move_to_end(principal.key_id)
        if len(self._buckets) > _MAX_BUCKETS:
            self._buckets.popitem(last=False)
        if not bucket.take(1, time.monotonic_ns() // 1000):
            wait = bucket.seconds_to_next
            raise Problem(
                429,
                f"this API key may send {rate:g} requests per second; try again in {wait:.1f} s",
                headers={"Retry-After": str(math.ceil(wait))},
            )


def _actor(who: Principal, headers: Headers, address: str | None) -> Actor:
    """Who acts, for the audit trail: the key, or the person for whom a trusted front end calls with its key."""
    name = who.name or who.key_id
    key: str | None = who.key_id
    if who.anybody:
        name, key = "anybody", None
    elif key == ITS_USER.key_id:
        name, key = os_user(), None  # the local key stands for the user who started this server
    if given := headers.getlist(ACTOR):
        if who.anybody or not holds(who.role, "operator"):
            raise Problem(403, f"{ACTOR} needs a key of the role operator: it names somebody else as the one who acts")
        if len(given) != 1 or _ACTOR.fullmatch(given[0]) is None:
            raise Problem(422, f"{ACTOR} must be 1 to 200 printable characters without spaces at its ends")
        name = given[0]
    request = headers.get(REQUEST_ID)
    if request is not None and _ACTOR.fullmatch(request) is None:
        request = None
    return Actor("api", name, key=key, request=request, address=address)


def operations_of(request: Request) -> Operations:
    """The operations of the tenant that the caller's key belongs to; `RequestGuard` has bound them."""
    operations = request.scope["duly.operations"]
    assert isinstance(operations, Operations)
    return operations


def principal_of(request: Request) -> Principal:
    """The caller; `RequestGuard` has authenticated it."""
    principal = request.scope["duly.principal"]
    assert isinstance(principal, Principal)
    return principal


Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
_NEEDS = "duly_needs"


def needs(*roles: Role) -> Callable[[Endpoint], Endpoint]:
    """Declare the role that a route needs, or several of which one is enough. None: the route needs no key."""

    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _NEEDS, roles)
        return endpoint

    return declare


def needed_by(endpoint: Callable[..., Any]) -> tuple[Role, ...]:
    """The roles that an endpoint has declared. An endpoint without a declaration is an error when the app is made."""
    declared: tuple[Role, ...] | None = getattr(endpoint, _NEEDS, None)
    if declared is None:
        raise TypeError(f"{endpoint.__qualname__} does not declare its roles: put @needs(…) above it")
    return declared


def allowed(needed: tuple[Role, ...]) -> list[Role]:
    """All roles that may call a route that needs one of these."""
    return [role for role in ROLES if any(holds(role, one) for one in needed)]


def check_role(principal: Principal, *needed: Role) -> Principal:
    if not any(holds(principal.role, one) for one in needed):
        wanted = " or ".join(needed)
        raise Problem(403, f"this API key has the role {principal.role}; this call needs the role {wanted}")
    return principal


def _refused(detail: str, *, error: str | None = None) -> Problem:
    challenge = 'Bearer realm="duly"' + (f', error="{error}"' if error else "")
    return Problem(401, detail, headers={"WWW-Authenticate": challenge})
