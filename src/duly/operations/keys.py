"""API keys: made, listed, revoked, and told from wrong ones at the price of few statements.

A key is `duly_<id>_<secret>`: the id finds its row, the secret is 256 random bits and a checksum, so that a slip of the
hand is refused without asking the store. The store has the SHA-256 of the whole.

`authenticate` asks the store about a key every two seconds at most: so long a revoked key still works in a process
that has just seen it. Keys that are not known yet wait for one another: one statement asks about all that came
meanwhile, and statements keep a distance. So a flood of wrong keys costs the store 50 small statements a second.
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
from duly.model import DEFAULT_TENANT
from duly.operations.core import Core
from duly.operations.rights import NO_TENANT, ROLES, Rights, Role
from duly.store import keys
from duly.store.keys import GoodKey, StoredKey
from duly.store.pool import Querier

log = logging.getLogger("duly.operations")

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# 62 ** 43 is the first power of 62 above 2 ** 256, and 62 ** 6 the first above 2 ** 32.
_SECRET_DIGITS, _CHECK_DIGITS, _ID_DIGITS = 43, 6, 12
_KEY = re.compile(rf"duly_([0-9a-z]{{{_ID_DIGITS}}})_[0-9A-Za-z]{{{_SECRET_DIGITS + _CHECK_DIGITS}}}", re.ASCII)
_LONGEST_LIFE = timedelta(days=3650)

# How long an answer is believed, and how many of them are kept: wrong keys cannot push good ones out.
_BELIEVED_SECONDS = 2.0
_MOST_GOOD, _MOST_WRONG = 20_000, 2_000
# Between two statements about unknown keys, and how many keys one asks about.
_DISTANCE_SECONDS = 0.02
_ASKED_AT_ONCE = 1_000
# A key's last use is written down when the one before is older than this.
_FRESH_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Principal:
    """Whoever holds a key: the tenant that it belongs to and what it allows."""

    key_id: str
    tenant: str
    role: Role
    requests_per_second: float | None
    anybody: bool = False
    """Nobody has shown a key: the server was opened to all."""

    @property
    def rights(self) -> Rights:
        return Rights.of(self.role, anybody=self.anybody)


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it may be shown: everything but the secret."""

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
    """A new key. `text` is the key itself, and this is the only time that anybody sees it."""

    text: str
    key: Key


class KeyOperations:
    """API keys, of all tenants."""

    def __init__(self, core: Core) -> None:
        self._pool = core.pool
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
        """Without a tenant: of the default one. A key that watches the whole store is of none."""
        if role not in ROLES:
            raise InvalidInput("role", f"must be one of {', '.join(ROLES)}, not {str(role)[:40]!r}")
        if role == "monitor":
            if tenant is not None:
                raise InvalidInput("tenant", "cannot be given for the role monitor, which is of no tenant")
            tenant = NO_TENANT
        else:
            tenant = checks.check_text("tenant", DEFAULT_TENANT if tenant is None else tenant, longest=100)
        if name is not None:
            checks.check_text("name", name, longest=200)
        if expires_in is not None and not timedelta() < expires_in <= _LONGEST_LIFE:
            raise InvalidInput("expires", f"must be between 1 second and {_LONGEST_LIFE.days} days")
        key_id, text = _new_key()
        stored = await keys.create(
            self._pool,
            key_id=key_id,
            digest=_digest(text),
            tenant=tenant,
            role=role,
            name=name,
            expires_in_seconds=None if expires_in is None else expires_in.total_seconds(),
        )
        return CreatedKey(text, _to_key(stored))

    async def all(self, *, tenant: str | None = None) -> list[Key]:
        """Newest first; revoked and expired ones too."""
        if tenant is not None:
            checks.check_text("tenant", tenant, longest=100)
        return [_to_key(stored) for stored in await keys.list_keys(self._pool, tenant=tenant)]

    async def revoke(self, key_id: str, *, tenant: str | None = None) -> Key:
        """By its id, or by the whole key. Revoking it again changes nothing.

        Processes that have just seen the key believe in it for two more seconds.
        """
        match = _KEY.fullmatch(key_id)
        asked = match[1] if match is not None else key_id.removeprefix("duly_")
        known = re.fullmatch(rf"[0-9a-z]{{{_ID_DIGITS}}}", asked)
        stored = await keys.revoke(self._pool, key_id=asked, tenant=tenant) if known else None
        if stored is None:
            # What was given may be a secret, or most of one.
            raise NotFound(f"there is no key with the id {asked[:_ID_DIGITS]!r}; see: duly key list")
        return _to_key(stored)

    async def authenticate(self, text: str) -> Principal | None:
        """Whose key this is; None if it is no key, or none any more."""
        match = _KEY.fullmatch(text)
        if match is None or not _is_whole(text):
            return None
        return await self._ring.look_up(match[1], _digest(text))

    async def exist(self) -> bool:
        """Whether any key was ever made. Revoked ones count, so that revoking the last one opens nothing."""
        if not self._keys_known:
            self._keys_known = await keys.any_keys(self._pool)
        return self._keys_known


class _Ring:
    """What this process knows about keys, by the hash of the whole key."""

    def __init__(self, store: Querier, settings: Settings) -> None:
        self._store = store
        self._default_rate = settings.requests_per_second
        # Each with the moment until which it is believed.
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
        # One caller that goes away must not take the answer from the others.
        return await asyncio.shield(asked[1])

    async def _ask_until_none_is_left(self) -> None:
        try:
            while self._asked:
                batch = dict(list(self._asked.items())[:_ASKED_AT_ONCE])
                # Counted from before the question: whatever is revoked after it is not in the answer.
                until = time.monotonic() + _BELIEVED_SECONDS
                try:
                    await self._ask(batch, until)
                except Exception as error:  # noqa: BLE001 - it belongs to those who wait for the answer
                    for _, answer in batch.values():
                        if not answer.done():
                            answer.set_exception(error)
                            # Those who asked may all have gone.
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
        return Principal(stored.key_id, stored.tenant, stored.role, rate)

    def _remember(self, digest: bytes, principal: Principal | None, until: float) -> None:
        self._good.pop(digest, None)
        self._wrong.pop(digest, None)
        if principal is not None:
            self._good[digest] = until, principal
            if len(self._good) > _MOST_GOOD:
                self._good.popitem(last=False)
        else:
            self._wrong[digest] = until
            if len(self._wrong) > _MOST_WRONG:
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
