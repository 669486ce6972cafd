"""Signatures of HTTP calls. tests/worker/targets/test_http_target.py tests that a receiver can check them."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.errors import ConfigError
from duly.signing import parse_secrets, show_secret, sign, tenant_secret

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER = "whsec_" + base64.b64encode(bytes(range(100, 124))).decode()


def test_a_known_message_has_its_known_signature() -> None:
    """The libraries of Standard Webhooks use this message in their own tests."""
    secrets = parse_secrets("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = sign(
        secrets,
        message_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        timestamp=1614265330,
        body=b'{"test": 2432232314}',
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_while_rotating_there_is_a_signature_for_each_secret() -> None:
    one = sign(parse_secrets(SECRET), message_id="a", timestamp=1, body=b"{}")["webhook-signature"]
    other = sign(parse_secrets(OTHER), message_id="a", timestamp=1, body=b"{}")["webhook-signature"]
    both = sign(parse_secrets(f" {SECRET}, {OTHER},"), message_id="a", timestamp=1, body=b"{}")["webhook-signature"]
    assert both == f"{one} {other}"
    assert one != other


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        (" , ", "empty"),
        (SECRET.removeprefix("whsec_"), "begin with whsec_"),
        ("whsec_sEcReT!sEcReT", "base64"),
        ("whsec_sEcRéT", "base64"),
        ("whsec_c0VjUmVU", "24 to 64 bytes"),
        ("whsec_" + base64.b64encode(b"sEcReT" * 11).decode(), "24 to 64 bytes"),
        (f"{SECRET},sEcReT", "begin with whsec_"),
    ],
)
def test_a_bad_secret_is_refused_with_the_name_of_the_setting_and_is_not_repeated(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match="DULY_WEBHOOK_SECRET") as refused:
        parse_secrets(text)
    assert why in str(refused.value)
    for part in text.replace(",", " ").split():
        assert part.removeprefix("whsec_") not in str(refused.value)


@given(st.binary(min_size=24, max_size=64))
def test_a_secret_that_is_shown_can_be_configured(secret: bytes) -> None:
    assert parse_secrets(show_secret(secret)) == (secret,)


def test_a_tenants_secret_is_what_any_hkdf_makes_of_the_stores() -> None:
    """By the steps of RFC 5869: receivers who hold the store's secret can derive a tenant's with any library."""
    secret = bytes(range(32))
    extracted = hmac.new(bytes(32), secret, hashlib.sha256).digest()
    expanded = hmac.new(extracted, "duly webhook of tenant Zoë".encode() + b"\x01", hashlib.sha256).digest()
    assert tenant_secret(secret, "Zoë") == expanded


def test_each_tenant_has_another_secret_and_none_has_the_stores() -> None:
    tenants = ["default", "a", "b", "a ", "A", "", "ab", "\x01"]
    derived = {tenant_secret(secret, tenant) for tenant in tenants for secret in (bytes(32), bytes(24), b"\x01" * 32)}
    assert len(derived) == 3 * len(tenants)
    assert bytes(32) not in derived
    assert all(len(secret) == 32 for secret in derived)
