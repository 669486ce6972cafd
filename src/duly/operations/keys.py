"""API keys: creating, listing and revoking them, and authenticating callers with few statements.

A key is `duly_<id>_<secret>`: the id finds its row, the secret is 256 random bits and a checksum, so that a mistyped
key is refused without asking the store. The store has the SHA-256 of the whole key.

`authenticate` asks the store about a key at most every two seconds: a revoked key works for that long in a process that
has just seen it. Unknown keys are looked up in batches: one statement asks about all that came meanwhile, and
statements are 20 ms apart. So a flood of wrong keys costs the store 50 small statements per second.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from duly import checks
from duly.config import Settings
from duly.errors import DulyError, InvalidInput, NotFound
from duly.operations.core import Core, check_reason
from duly.operations.rights import NO_TENANT, ROLES, Rights, Role
from duly.store import keys
from duly.store.keys import GoodKey, StoredKey
from duly.store.pool import Querier

log = logging.getLogger("duly.operations")

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# 62 ** 43 is the first power of 62 above 2 ** 256, and 62 ** 6 the first above 2 ** 32.
_SECRET_DIGITS, _CHECK_DIGITS, _ID_DIGITS = 43, 6, 12
_KEY = re.compile(rf"duly_([0-9a-z]{{{_ID_DIGITS}}})_[0-9A-Za-z]{{{_SECRET_DIGITS + _CHECK_DIGITS}}}", re.ASCII)
_MAX_LIFE = timedelta(days=3650)

# Seconds for which an answer is believed, and the maximum number of answers that are kept. Wrong keys are kept apart,
# so they cannot push good ones out.
_BELIEVED_SECONDS = 2.0
_MAX_GOOD, _MAX_WRONG = 20_000, 2_000
# Seconds between two statements about unknown keys, and the maximum number of keys per statement.
_DISTANCE_SECONDS = 0.02
_MAX_KEYS_ASKED = 1_000
# Seconds after which a key's recorded last use is updated.
_FRESH_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller: the tenant of its key, and the rights that the key gives."""

    key_id: str
    tenant: str
    role: Role
    requests_per_second: float | None
    anybody: bool = False
    """The caller has shown no key: the server was opened to all."""
    name: str | None = None
    """The key's name."""

    @property
    def rights(self) -> Rights:
        return Rights.of(self.role, anybody=self.anybody)


@dataclass(frozen=True, slots=True)
class Key:
    """A key without its secret."""

    key_id: str
    name: str | None
    tenant: str
    role: Role
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None

    def status(self, now: datetime) -> Literal["active", "expired", "revoked"]:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new key. `text` is the key itself; it is not stored and cannot be shown again."""

    text: str
    key: Key


class KeyOperations:
    """API keys, of all tenants."""

    def __init__(self, core: Core) -> None:
        self._pool = core.pool
        self._actor = core.actor
        self._tenant = core.settings.tenant
        self._ring = _Ring(core.pool, core.settings)
        self._keys_known = False

    async def create(
        self,
        *,
        tenant: str | None = None,
        role: Role,
        name: str | None = None,
        expires_in: timedelta | None = None,
    ) -> CreatedKey:
        """Create a key, of the settings' tenant if none is given. A key of the role `monitor` belongs to no tenant."""
        if role not in ROLES:
            raise InvalidInput("role", f"must be one of {', '.join(ROLES)}, not {str(role)[:40]!r}")
        if role == "monitor":
            if tenant is not None:
                raise InvalidInput("tenant", "cannot be given for the role monitor, which is of no tenant")
            tenant = NO_TENANT
        else:
            tenant = checks.check_text("tenant", self._tenant if tenant is None else tenant, longest=100)
        if name is not None:
            checks.check_text("name", name, longest=200)
        if expires_in is not None and not timedelta() < expires_in <= _MAX_LIFE:
            raise InvalidInput("expires", f"must be between 1 second and {_MAX_LIFE.days} days")
        key_id, text = _new_key()
        stored = await keys.create(
            self._pool,
            key_id=key_id,
            digest=_digest(text),
            tenant=tenant,
            role=role,
            name=name,
            expires_in_seconds=None if expires_in is None else expires_in.total_seconds(),
            note=self._actor.note(),
        )
        return CreatedKey(text, _to_key(stored))

    async def all(self, *, tenant: str | None = None) -> list[Key]:
        """All keys, or those of one tenant, newest first, including revoked and expired ones."""
        if tenant is not None:
            checks.check_text("tenant", tenant, longest=100)
        return [_to_key(stored) for stored in await keys.list_keys(self._pool, tenant=tenant)]

    async def revoke(self, key_id: str, *, tenant: str | None = None, reason: str | None = None) -> Key:
        """Revoke a key, given by its id or as a whole. Revoking it again changes nothing.

        Processes that have just seen the key accept it for two more seconds.
        """
        match = _KEY.fullmatch(key_id)
        asked = match[1] if match is not None else key_id.removeprefix("duly_")
        known = re.fullmatch(rf"[0-9a-z]{{{_ID_DIGITS}}}", asked)
        note = self._actor.note(reason=check_reason(reason))
        stored = await keys.revoke(self._pool, key_id=asked, tenant=tenant, note=note) if known else None
        if stored is None:
            # The argument may be a secret or a part of one, so no more of it is shown.
            raise NotFound(f"there is no key with the id {asked[:_ID_DIGITS]!r}; see: duly key list")
        return _to_key(stored)

    async def authenticate(self, text: str) -> Principal | None:
        """The holder of this key; None if the key is invalid, revoked or expired."""
        match = _KEY.fullmatch(text)
        if match is None or not _is_whole(text):
            return None
        return await self._ring.look_up(match[1], _digest(text))

    async def exist(self) -> bool:
        """Whether any key was ever created. Revoked keys count, so that revoking the last key opens nothing."""
        if not self._keys_known:
            self._keys_known = await keys.any_keys(self._pool)
        return self._keys_known


class _Ring:
    """Answers about keys that this process remembers, by the hash of the whole key."""

    def __init__(self, store: Querier, settings: Settings) -> None:
        self._store = store
        self._default_rate = settings.requests_per_second
        # Each answer with the monotonic time until which it is believed.
        self._good: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()
        self._wrong: OrderedDict[bytes, float] = OrderedDict()
        self._asked: dict[bytes, tuple[str, asyncio.Future[Principal | None]]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def look_up(self, key_id: str, digest: bytes) -> Principal | None:
        now = time.monotonic()
        if (good := self._good.get(digest)) is not None and now < good[0]:
            return good[1]
        if now < self._wrong.get(digest, 0.0):
            return None
        asked = self._asked.get(digest)
        if asked is None:
            asked = self._asked[digest] = key_id, asyncio.get_running_loop().create_future()
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_until_none_is_left())
        # A caller that is cancelled must not cancel the answer for the others.
        return await asyncio.shield(asked[1])

    async def _ask_until_none_is_left(self) -> None:
        try:
            while self._asked:
                batch = dict(list(self._asked.items())[:_MAX_KEYS_ASKED])
                # From before the statement is sent: a revocation after that may not be in its answer.
                until = time.monotonic() + _BELIEVED_SECONDS
                try:
                    await self._ask(batch, until)
                except Exception as error:  # noqa: BLE001 - the callers that wait for the answer handle it
                    for _, answer in batch.values():
                        if not answer.done():
                            answer.set_exception(error)
                            # All callers may have been cancelled: asyncio would log the exception as never retrieved.
                            answer.exception()
                finally:
                    for digest, (_, answer) in batch.items():
                        del self._asked[digest]
                        answer.cancel()  # without effect where there is an answer
                await asyncio.sleep(_DISTANCE_SECONDS)
        finally:
            self._asking = None

    async def _ask(self, batch: dict[bytes, tuple[str, asyncio.Future[Principal | None]]], until: float) -> None:
        found = await keys.find(
            self._store, sorted({key_id for key_id, _ in batch.values()}), fresh_seconds=_FRESH_SECONDS
        )
        worn = []
        for digest, (key_id, answer) in batch.items():
            principal = self._judge(found.get(key_id), digest)
            self._remember(digest, principal, until)
            if principal is not None and found[key_id].worn:
                worn.append(key_id)
            if not answer.done():
                answer.set_result(principal)
        if worn:
            try:
                await keys.touch(self._store, worn)
            except DulyError as error:
                log.debug("the last use of %d keys was not written: %s", len(worn), error)

    def _judge(self, stored: GoodKey | None, digest: bytes) -> Principal | None:
        if stored is None or not hmac.compare_digest(stored.hash, digest):
            return None
        rate = self._default_rate if stored.requests_per_second is None else stored.requests_per_second
        return Principal(stored.key_id, stored.tenant, stored.role, rate, name=stored.name)

    def _remember(self, digest: bytes, principal: Principal | None, until: float) -> None:
        self._good.pop(digest, None)
        self._wrong.pop(digest, None)
        if principal is not None:
            self._good[digest] = until, principal
            if len(self._good) > _MAX_GOOD:
                self._good.popitem(last=False)
        else:
            self._wrong[digest] = until
            if len(self._wrong) > _MAX_WRONG:
                self._wrong.popitem(last=False)


def _new_key() -> tuple[str, str]:
    key_id = "".join(secrets.choice("0123456789abcdefghijklmnopqrstuvwxyz") for _ in range(_ID_DIGITS))
    body = f"duly_{key_id}_{_spell(secrets.randbits(256), _SECRET_DIGITS)}"
    return key_id, body + _checksum(body)


def _is_whole(text: str) -> bool:
    return _checksum(text[:-_CHECK_DIGITS]) == text[-_CHECK_DIGITS:]


def _checksum(body: str) -> str:
    return _spell(zlib.crc32(body.encode()), _CHECK_DIGITS)


def _spell(number: int, digits: int) -> str:
    spelt = ""
    for _ in range(digits):
        number, digit = divmod(number, 62)
        spelt = _DIGITS[digit] + spelt
    return spelt


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _to_key(stored: StoredKey) -> Key:
    return Key(
        stored.key_id,
        stored.name,
        stored.tenant,
        stored.role,
        stored.created_at,
        stored.last_used_at,
        stored.expires_at,
        stored.revoked_at,
    )
