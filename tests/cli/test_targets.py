"""Jobs that call an endpoint or a program, from the command line; and the secret that receivers check calls with."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from harness.commands import Ended

Run = Callable[..., Ended]
SECRET = "sEcReT-token-0123456789"


def handler_of(duly: Run, *arguments: str) -> Any:
    """The handler of a job submitted with these arguments, as it is shown."""
    ended = duly("submit", "--run-at", "2999-01-01T00:00:00Z", "--json", *arguments)
    assert ended.code == 0, ended.err
    assert SECRET not in ended.out
    return ended.document["handler"]


def test_submit_takes_an_endpoint_with_its_headers_and_never_shows_a_secret(duly: Run) -> None:
    options = ("--method", "put", "--header", "X-Team: ops", "--header", "X-Url:http://a:1/")
    secret = ("--secret-header", f"Authorization: Bearer {SECRET}")
    handler = handler_of(duly, "--call", "https://example.org/hook", *options, *secret, "--name", "hook")
    assert handler == {
        "type": "http",
        "url": "https://example.org/hook",
        "method": "PUT",
        "headers": {"X-Team": "ops", "X-Url": "http://a:1/"},
        "secret_headers": {"Authorization": "***"},
    }
    shown = duly("job", "show", "hook")
    assert "example.org" in shown.out
    assert SECRET not in shown.out


def test_submit_takes_a_program_with_its_arguments_after_two_dashes(duly: Run) -> None:
    options = ("--env", "LEVEL=a=b", "--secret-env", f"TOKEN={SECRET}", "--cwd", "/srv")
    assert handler_of(duly, "--command", *options, "--", "backup", "--all", "--json", "--", "x y") == {
        "type": "command",
        "argv": ["backup", "--all", "--json", "--", "x y"],
        "env": {"LEVEL": "a=b"},
        "secret_env": {"TOKEN": "***"},
        "cwd": "/srv",
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("handler", "--call or --command")),
        (("greet", "meet"), ("handler", "'greet meet'")),
        (("greet", "--call", "https://example.org/"), ("handler", "not both", "greet")),
        (("--call", "https://example.org/", "--command", "--", "ls"), ("handler", "--call or --command, not both")),
        (("--url", f"https://me:{SECRET}@example.org/"), ("duly --url … submit", "duly submit --call URL")),
        (("--command",), ("handler", "program after --")),
        (("greet", "--method", "PUT"), ("--method", "--call")),
        (("greet", "--secret-header", f"X: {SECRET}"), ("--secret-header", "--call")),
        (("greet", "--env", "A=b"), ("--env", "--command")),
        (("--call", "https://example.org/", "--cwd", "/srv"), ("--cwd", "--command")),
        (("--call", "example.org"), ("handler.url", "https://")),
        (("--call", ""), ("handler.url",)),
        (("--call", f"https://me:{SECRET}@example.org/"), ("handler.url", "secret_headers")),
        (("--call", "https://example.org/", "--method", "HEAD"), ("handler.method", "POST")),
        (("--call", "https://example.org/", "--header", "nonsense"), ("--header", "Name: value")),
        (("--call", "https://example.org/", "--secret-header", SECRET), ("--secret-header", "Name: value")),
        (("--call", "https://example.org/", "--header", "Host: evil"), ("handler.headers.Host", "Duly itself")),
        (("--call", "https://example.org/", "--secret-header", f"X: {SECRET}\nY: z"), ("handler.secret_headers.X",)),
        (("--command", "--env", "nonsense", "--", "ls"), ("--env", "NAME=VALUE")),
        (("--command", "--secret-env", SECRET, "--", "ls"), ("--secret-env", "NAME=VALUE")),
    ],
)
def test_what_cannot_be_called_is_refused_in_one_sentence_without_secrets(
    duly: Run, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    ended = duly("submit", *arguments)
    assert ended.code == 2
    assert len(ended.err.strip().splitlines()) == 1, ended.err
    for word in words:
        assert word in ended.err
    assert SECRET not in ended.err
    assert duly("job", "list", "--json").out == ""


def test_each_tenant_has_a_signing_secret_of_its_own_which_stays_the_same(duly: Run) -> None:
    ended = duly("webhook-secret")
    assert ended.code == 0, ended.err
    secret = ended.out.strip()
    assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 32
    assert duly("webhook-secret", "--tenant", "default").out.strip() == secret
    others = {duly("webhook-secret", "--tenant", tenant).out.strip() for tenant in ("a", "b")}
    assert len(others - {secret}) == 2
    refused = duly("webhook-secret", "--tenant", "")
    assert (refused.code, "tenant" in refused.err) == (2, True)


def test_the_signing_secrets_that_are_configured_are_what_tenants_have_theirs_from(
    duly: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = ("whsec_" + base64.b64encode(bytes([n]) * 24).decode() for n in (1, 2))
    monkeypatch.setenv("DULY_WEBHOOK_SECRET", f"{one}, {other}")
    both = duly("webhook-secret").out.splitlines()
    assert len({one, other, *both}) == 4
    monkeypatch.setenv("DULY_WEBHOOK_SECRET", other)
    assert duly("webhook-secret").out.splitlines() == both[1:]
    monkeypatch.setenv("DULY_WEBHOOK_SECRET", "hunter2")
    refused = duly("webhook-secret")
    assert refused.code == 2
    assert "DULY_WEBHOOK_SECRET" in refused.err
    assert "hunter2" not in refused.err
