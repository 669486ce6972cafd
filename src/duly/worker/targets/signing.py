"""Signatures on the calls of HTTP targets, by the Standard Webhooks scheme. Pure.

A receiver that knows the secret can tell that a call comes from this store, that its body is whole, and that it is not
an old one sent again. Each tenant's calls are signed with a secret of its own: who can check one tenant's calls can
forge no other's, and a job of one tenant that calls another's endpoint is told from that one's own.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

from duly.errors import ConfigError

SETTING = "DULY_WEBHOOK_SECRET"
PREFIX = "whsec_"
# The scheme's own bounds.
_SHORTEST, _LONGEST = 24, 64


def parse_secrets(text: str) -> tuple[bytes, ...]:
    """From `DULY_WEBHOOK_SECRET`: one secret, or several by commas while receivers change from one to the next."""
    secrets = tuple(_parse_secret(part) for part in (part.strip() for part in text.split(",")) if part)
    if not secrets:
        raise _bad("it is empty")
    return secrets


def tenant_secret(secret: bytes, tenant: str) -> bytes:
    """The secret of one tenant, from the store's. From it nobody comes back to the store's or to another tenant's.

    The default tenant's is derived like any other: with the store's own, its receivers could work out everybody's.
    """
    # HKDF of RFC 5869 with SHA-256 and no salt; one block of output is enough.
    key = hmac.digest(bytes(hashlib.sha256().digest_size), secret, hashlib.sha256)
    return hmac.digest(key, b"duly webhook of tenant " + tenant.encode() + b"\x01", hashlib.sha256)


def show_secret(secret: bytes) -> str:
    """As receivers are given it."""
    return PREFIX + base64.b64encode(secret).decode()


def sign(secrets: Sequence[bytes], *, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a signed call. One signature for each secret: a receiver is content with any that it can check."""
    content = b".".join((message_id.encode(), str(timestamp).encode(), body))
    signatures = (base64.b64encode(hmac.digest(secret, content, hashlib.sha256)).decode() for secret in secrets)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def _parse_secret(text: str) -> bytes:
    if not text.startswith(PREFIX):
        raise _bad(f"it must begin with {PREFIX}")
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        # Not `from error`, and not the text itself: both could show the secret.
        raise _bad(f"what follows {PREFIX} must be base64") from None
    if not _SHORTEST <= len(secret) <= _LONGEST:
        raise _bad(f"it must hold {_SHORTEST} to {_LONGEST} bytes, this has {len(secret)}")
    return secret


def _bad(why: str) -> ConfigError:
    return ConfigError(
        f"{SETTING}: {why}; make one with: "
        "python -c \"import base64, os; print('whsec_' + base64.b64encode(os.urandom(32)).decode())\""
    )
