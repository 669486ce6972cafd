"""Targets: the objects that a job calls instead of a Python task. Checks them, and hides their secrets. No I/O.

`{"type": "http", "url": …}` calls an endpoint, `{"type": "command", "argv": […]}` runs a program. A submit passes
through `check_target`, a shown job through `shown_target`; `duly.worker.targets` makes the calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from duly.errors import InvalidInput
from duly.masking import HIDDEN, is_secret_header, shown_url
from duly.urls import split_url

METHODS = ("POST", "PUT", "PATCH", "GET", "DELETE")
MAX_HEADERS = 50
MAX_ARGUMENTS = 1_000
MAX_TARGET_BYTES = 64 * 1024
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,100}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_HEADER_TEXT = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
_SHOWN = f"is {HIDDEN}, which stands for a hidden secret: send the secret itself"
# Headers that Duly itself sets, and headers of the connection.
_RESERVED = frozenset(
    {
        "connection", "content-length", "expect", "host", "idempotency-key", "keep-alive", "proxy-connection", "te",
        "traceparent", "trailer", "transfer-encoding", "upgrade", "webhook-id", "webhook-signature",
        "webhook-timestamp",
    }
)  # fmt: skip


def check_target(handler: Mapping[str, Any]) -> tuple[str, str, str]:
    """The kind of the target, the JSON to store, and the default name of its job."""
    kind = handler.get("type")
    if not isinstance(kind, str) or kind not in _CHECKS:
        raise InvalidInput("handler.type", f"must be {' or '.join(KINDS)}, not {str(kind)[:40]!r}")
    target, name = _CHECKS[kind](handler)
    text = json.dumps(target, ensure_ascii=False)
    if len(text.encode()) > MAX_TARGET_BYTES:
        raise InvalidInput("handler", f"must be at most {MAX_TARGET_BYTES} bytes as JSON")
    return kind, text, name


def shown_target(target: Mapping[str, Any]) -> dict[str, Any]:
    """The target for readers: secret headers, secret variables and a URL's query have names but no values."""
    shown = dict(target)
    if "?" in (url := str(shown.get("url", ""))) or "#" in url:
        shown["url"] = shown_url(url)
    for field in ("secret_headers", "secret_env"):
        if field in shown:
            shown[field] = dict.fromkeys(shown[field], HIDDEN)
    if "headers" in shown:
        shown["headers"] = {
            name: HIDDEN if is_secret_header(name) else value for name, value in shown["headers"].items()
        }
    return shown


def is_reserved(header: str) -> bool:
    """Whether Duly itself sets this header. CGI and WSGI write `_` for `-`: to them two such names are the same."""
    name = header.lower().replace("_", "-")
    return name in _RESERVED or name.startswith("duly-")


def _check_http(handler: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    _refuse_unknown(handler, {"type", "url", "method", "headers", "secret_headers"})
    url = _text(handler.get("url"), "handler.url", longest=2048)
    parts = split_url("handler.url", url)
    if parts.username is not None or parts.password is not None:
        raise InvalidInput("handler.url", "must not hold a user or password; use secret_headers")
    if HIDDEN in (part.rpartition("=")[2] for part in parts.query.split("&")):
        raise InvalidInput("handler.url", _SHOWN)
    target: dict[str, Any] = {"type": "http", "url": url}
    method = handler.get("method", "POST")
    if not isinstance(method, str) or method.upper() not in METHODS:
        raise InvalidInput("handler.method", f"must be one of {', '.join(METHODS)}")
    if method.upper() != "POST":
        target["method"] = method.upper()
    for field in ("headers", "secret_headers"):
        if headers := _check_headers(handler.get(field, {}), f"handler.{field}"):
            target[field] = headers
    return target, f"{parts.hostname}{parts.path}"[:200]


def _check_headers(headers: object, field: str) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise InvalidInput(field, "must be a map of strings")
    if len(headers) > MAX_HEADERS:
        raise InvalidInput(field, f"must be at most {MAX_HEADERS}")
    for name, value in headers.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise InvalidInput(field, f"{str(name)[:40]!r} is not the name of a header")
        if is_reserved(name):
            raise InvalidInput(f"{field}.{name}", "is set by Duly itself")
        if not isinstance(value, str) or len(value) > 8192 or not _HEADER_TEXT.fullmatch(value):
            raise InvalidInput(f"{field}.{name}", "must be a string without line breaks or control characters")
        if value == HIDDEN and (field == "handler.secret_headers" or is_secret_header(name)):
            raise InvalidInput(f"{field}.{name}", _SHOWN)
    return dict(headers)


def _check_command(handler: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    _refuse_unknown(handler, {"type", "argv", "env", "secret_env", "cwd"})
    argv = handler.get("argv")
    if isinstance(argv, str) or not isinstance(argv, list | tuple) or not argv:
        raise InvalidInput("handler.argv", 'must be a list of strings, as in ["backup", "--all"]; there is no shell')
    if len(argv) > MAX_ARGUMENTS:
        raise InvalidInput("handler.argv", f"must have at most {MAX_ARGUMENTS} elements")
    for index, argument in enumerate(argv):
        _text(argument, f"handler.argv[{index}]", longest=MAX_TARGET_BYTES, shortest=0 if index else 1)
    target: dict[str, Any] = {"type": "command", "argv": list(argv)}
    for field in ("env", "secret_env"):
        if variables := _check_variables(handler.get(field, {}), f"handler.{field}"):
            target[field] = variables
    if (cwd := handler.get("cwd")) is not None:
        target["cwd"] = _text(cwd, "handler.cwd", longest=4096)
    return target, argv[0].rpartition("/")[2][:200] or "command"


def _check_variables(variables: object, field: str) -> dict[str, str]:
    if not isinstance(variables, Mapping):
        raise InvalidInput(field, "must be a map of strings")
    for name, value in variables.items():
        if not isinstance(name, str) or not VARIABLE.fullmatch(name):
            raise InvalidInput(field, f"{str(name)[:40]!r} is not the name of an environment variable")
        if name.startswith("DULY_"):
            raise InvalidInput(f"{field}.{name}", "is set by Duly itself")
        if _text(value, f"{field}.{name}", longest=MAX_TARGET_BYTES, shortest=0) == HIDDEN and "secret" in field:
            raise InvalidInput(f"{field}.{name}", _SHOWN)
    return dict(variables)


def _refuse_unknown(handler: Mapping[str, Any], known: set[str]) -> None:
    if unknown := [str(name) for name in handler if name not in known]:
        raise InvalidInput(f"handler.{min(unknown)[:60]}", f"is not one of {', '.join(sorted(known))}")


def _text(value: object, field: str, *, longest: int, shortest: int = 1) -> str:
    if not isinstance(value, str):
        raise InvalidInput(field, "must be a string")
    if not shortest <= len(value) <= longest:
        raise InvalidInput(field, f"must have {shortest} to {longest} characters, this has {len(value)}")
    if "\x00" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidInput(field, "must not contain NUL characters or lone surrogates")
    return value


_CHECKS: dict[str, Callable[[Mapping[str, Any]], tuple[dict[str, Any], str]]] = {
    "http": _check_http,
    "command": _check_command,
}
KINDS = tuple(_CHECKS)
