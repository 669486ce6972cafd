"""Targets (HTTP endpoints and commands): which are accepted or refused, and how they are shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from duly.errors import InvalidInput
from duly.masking import HIDDEN
from duly.targets import MAX_ARGUMENTS, MAX_HEADERS, check_target, shown_target

HTTP: dict[str, Any] = {"type": "http", "url": "https://example.org/hook"}
COMMAND: dict[str, Any] = {"type": "command", "argv": ["backup", "--all"]}


def checked(handler: dict[str, Any]) -> dict[str, Any]:
    target = json.loads(check_target(handler)[1])
    assert isinstance(target, dict)
    return target


def test_an_endpoint_is_kept_as_it_was_given_and_names_its_job() -> None:
    handler = {
        **HTTP,
        "method": "put",
        "headers": {"X-Team": "ops", "X-Empty": ""},
        "secret_headers": {"Authorization": "Bearer s"},
    }
    kind, text, name = check_target(handler)
    assert (kind, name) == ("http", "example.org/hook")
    assert json.loads(text) == {**handler, "method": "PUT"}


def test_what_is_default_is_not_kept() -> None:
    assert checked({**HTTP, "method": "POST", "headers": {}, "secret_headers": {}}) == HTTP
    assert checked({**COMMAND, "env": {}, "secret_env": {}, "cwd": None}) == COMMAND


def test_a_command_is_kept_as_it_was_given_and_names_its_job() -> None:
    handler = {
        "type": "command",
        "argv": ["/usr/bin/backup", "--to", "", "Zoë\n"],
        "env": {"LEVEL": "3", "EMPTY": ""},
        "secret_env": {"TOKEN": "t"},
        "cwd": "/srv",
    }
    kind, text, name = check_target(handler)
    assert (kind, name) == ("command", "backup")
    assert json.loads(text) == handler


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"type": "ftp"}, "handler.type"),
        ({"type": None}, "handler.type"),
        ({"type": ["http"]}, "handler.type"),
        ({"url": None}, "handler.url"),
        ({"url": ""}, "handler.url"),
        ({"url": 5}, "handler.url"),
        ({"url": "ftp://example.org/"}, "handler.url"),
        ({"url": "file:///etc/passwd"}, "handler.url"),
        ({"url": "example.org/hook"}, "handler.url"),
        ({"url": "https://"}, "handler.url"),
        ({"url": "https:///hook"}, "handler.url"),
        ({"url": "https://exam ple.org/"}, "handler.url"),
        ({"url": "https://example.org/\r\nX: y"}, "handler.url"),
        ({"url": "https://example.org:99999/"}, "handler.url"),
        ({"url": "https://example.org:port/"}, "handler.url"),
        ({"url": "https://[::1/"}, "handler.url"),
        ({"url": "https://me:secret@example.org/"}, "handler.url"),
        ({"url": "https://me@example.org/"}, "handler.url"),
        ({"url": "https://example.org/" + "x" * 2048}, "handler.url"),
        ({"url": "https://example.org/\x00"}, "handler.url"),
        ({"url": "https://example.org/\ud800"}, "handler.url"),
        ({"method": "CONNECT"}, "handler.method"),
        ({"method": "POST\r\n"}, "handler.method"),
        ({"method": 1}, "handler.method"),
        ({"headers": ["X: y"]}, "handler.headers"),
        ({"headers": {"": "y"}}, "handler.headers"),
        ({"headers": {"X y": "z"}}, "handler.headers"),
        ({"headers": {"X:": "z"}}, "handler.headers"),
        ({"headers": {"X\n": "z"}}, "handler.headers"),
        ({"headers": {"X": "a\r\nHost: evil"}}, "handler.headers.X"),
        ({"headers": {"X": "a\x00"}}, "handler.headers.X"),
        ({"headers": {"X": "\u4e16"}}, "handler.headers.X"),
        ({"headers": {"X": 1}}, "handler.headers.X"),
        ({"headers": {"X": "y" * 8193}}, "handler.headers.X"),
        ({"headers": {f"X-{n}": "y" for n in range(MAX_HEADERS + 1)}}, "handler.headers"),
        ({"headers": {"Host": "evil"}}, "handler.headers.Host"),
        ({"headers": {"content-length": "0"}}, "handler.headers.content-length"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, "handler.headers.Transfer-Encoding"),
        ({"headers": {"Idempotency-Key": "x"}}, "handler.headers.Idempotency-Key"),
        ({"headers": {"Duly-Fencing-Token": "x"}}, "handler.headers.Duly-Fencing-Token"),
        ({"headers": {"Webhook-Signature": "x"}}, "handler.headers.Webhook-Signature"),
        ({"headers": {"TraceParent": "x"}}, "handler.headers.TraceParent"),
        ({"headers": {"Webhook_Signature": "x"}}, "handler.headers.Webhook_Signature"),
        ({"headers": {"Idempotency_Key": "x"}}, "handler.headers.Idempotency_Key"),
        ({"secret_headers": {"transfer_Encoding": "x"}}, "handler.secret_headers.transfer_Encoding"),
        ({"headers": {"Duly_Run-Id": "x"}}, "handler.headers.Duly_Run-Id"),
        ({"secret_headers": {"X": "a\nb"}}, "handler.secret_headers.X"),
        ({"secret_headers": {"duly-run-id": "x"}}, "handler.secret_headers.duly-run-id"),
        ({"argv": ["x"]}, "handler.argv"),
        ({"body": "x"}, "handler.body"),
        ({"headers": {f"X-{n}": "y" * 8000 for n in range(20)}}, "handler"),
    ],
)
def test_an_endpoint_that_cannot_be_called_is_refused_by_the_name_of_its_field(
    change: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_target({**HTTP, **change})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"argv": None}, "handler.argv"),
        ({"argv": []}, "handler.argv"),
        ({"argv": "backup --all"}, "handler.argv"),
        ({"argv": [""]}, "handler.argv[0]"),
        ({"argv": ["a", 1]}, "handler.argv[1]"),
        ({"argv": ["a", "b\x00c"]}, "handler.argv[1]"),
        ({"argv": ["a"] * (MAX_ARGUMENTS + 1)}, "handler.argv"),
        ({"env": {"A=B": "c"}}, "handler.env"),
        ({"env": {"1A": "c"}}, "handler.env"),
        ({"env": {"A": 1}}, "handler.env.A"),
        ({"env": {"A": "\x00"}}, "handler.env.A"),
        ({"env": {"DULY_RUN_ID": "x"}}, "handler.env.DULY_RUN_ID"),
        ({"env": ["A=b"]}, "handler.env"),
        ({"secret_env": {"A": None}}, "handler.secret_env.A"),
        ({"cwd": ""}, "handler.cwd"),
        ({"cwd": "/a\x00"}, "handler.cwd"),
        ({"shell": True}, "handler.shell"),
        ({"argv": ["a", "x" * 60_000, "y" * 60_000]}, "handler"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused_by_the_name_of_its_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_target({**COMMAND, **change})
    assert refused.value.field == field


def test_an_error_does_not_repeat_a_secret() -> None:
    for handler in (
        {**HTTP, "secret_headers": {"X-Key": "sEcReT\n"}},
        {**HTTP, "url": "https://me:sEcReT@example.org/"},
        {**COMMAND, "secret_env": {"KEY": "sEcReT\x00"}},
    ):
        with pytest.raises(InvalidInput) as refused:
            check_target(handler)
        assert "sEcReT" not in str(refused.value)


def test_what_is_secret_is_shown_by_its_name_only() -> None:
    target = checked(
        {
            **HTTP,
            "headers": {"authorization": "Bearer 1", "Cookie": "2", "X-Team": "ops"},
            "secret_headers": {"X-Key": "3"},
        }
    )
    assert shown_target(target) == {
        **HTTP,
        "headers": {"authorization": HIDDEN, "Cookie": HIDDEN, "X-Team": "ops"},
        "secret_headers": {"X-Key": HIDDEN},
    }
    assert target["secret_headers"] == {"X-Key": "3"}, "showing a target must not change it"
    shown = shown_target(checked({**COMMAND, "env": {"A": "b"}, "secret_env": {"KEY": "c"}}))
    assert shown == {**COMMAND, "env": {"A": "b"}, "secret_env": {"KEY": HIDDEN}}
