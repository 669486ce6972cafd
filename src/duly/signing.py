"""Signs the calls of HTTP targets by the Standard Webhooks scheme. Pure.

A receiver that knows the secret can tell that a call comes from this store, that its body is intact, and that it is not
an old call replayed. Each tenant's calls are signed with a secret of its own: a receiver of one tenant cannot forge
calls of another, and can tell a call of its own tenant from one that another tenant's job makes to it.
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
_MIN_BYTES, _MAX_BYTES = 24, 64


def parse_secrets(text: str) -> tuple[bytes, ...]:
    """Reads `DULY_WEBHOOK_SECRET`: one secret, or several separated by commas during a change of secrets."""
    secrets = tuple(_parse_secret(part) for part in (part.strip() for part in text.split(",")) if part)
    if not secrets:
        raise _bad("it is empty")
    return secrets


def tenant_secret(secret: bytes, tenant: str) -> bytes:
    """Derives a tenant's secret from the store's. Neither the store's nor another tenant's can be computed from it.

    The default tenant's is derived as well: with the store's own secret its receivers could compute all others.
    """
    # HKDF of RFC 5869 with SHA-256 and no salt; one block of output is enough.
    key = hmac.digest(bytes(hashlib.sha256().digest_size), secret, hashlib.sha256)
    return hmac.digest(key, b"duly webhook of tenant " + tenant.encode() + b"\x01", hashlib.sha256)


def show_secret(secret: bytes) -> str:
    """The secret in the form that receivers are given."""
    return PREFIX + base64.b64encode(secret).decode()


def sign(secrets: Sequence[bytes], *, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a signed call. One signature per secret: a receiver accepts any that it can check."""
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
        raise _bad(f"the part after {PREFIX} must be base64") from None
    if not _MIN_BYTES <= len(secret) <= _MAX_BYTES:
        raise _bad(f"it must hold {_MIN_BYTES} to {_MAX_BYTES} bytes, this has {len(secret)}")
    return secret


def _bad(why: str) -> ConfigError:
    return ConfigError(
        f"{SETTING}: {why}; make one with: "
        "python -c \"import base64, os; print('whsec_' + base64.b64encode(os.urandom(32)).decode())\""
    )
