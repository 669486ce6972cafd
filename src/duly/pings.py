"""The addresses of watching services (`ping_url`), and the requests that tell them about a run. No I/O.

Each service has a form of its own. It follows from the host of the address, or from a prefix in front of it:

| prefix | hosts | a run starts, succeeds, fails |
| --- | --- | --- |
| `healthchecks+` | hc-ping.com, and every host not named here | `URL/start`, `URL`, `URL/fail` or `URL/{exit status}` |
| `cronitor+` | cronitor.link, cronitor.io | `URL?state=run`, `complete`, `fail` |
| `sentry+` | sentry.io and below | `URL?status=in_progress`, `ok`, `error` |
| `plain+` | none | nothing, `URL`, nothing |

Healthchecks also gets a note, at `URL/log`, about what is no end: an attempt that failed and is retried, a cancelled
run. All requests of one run carry the same id, so that a service tells overlapping runs apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote, urlencode, urlsplit, urlunsplit
from uuid import UUID

from duly.errors import InvalidInput
from duly.masking import HIDDEN
from duly.urls import split_url

Event = Literal["start", "success", "failure", "note"]
Form = Literal["healthchecks", "cronitor", "sentry", "plain"]

FORMS: tuple[Form, ...] = ("healthchecks", "cronitor", "sentry", "plain")
# Hosts, each with those below it.
_HOSTS: dict[str, Form] = {"cronitor.link": "cronitor", "cronitor.io": "cronitor", "sentry.io": "sentry"}
_CRONITOR: dict[Event, str] = {"start": "run", "success": "complete", "failure": "fail"}
_SENTRY: dict[Event, str] = {"start": "in_progress", "success": "ok", "failure": "error"}


@dataclass(frozen=True, slots=True)
class Report:
    """What a service is told: what happened to which run. `rid` is the same for everything about one run."""

    event: Event
    rid: UUID
    message: str = ""
    #: How long the attempt ran.
    seconds: float | None = None
    #: Of a command that failed.
    exit_status: int | None = None
    #: Who ran it, for people.
    host: str = ""


@dataclass(frozen=True, slots=True)
class PingRequest:
    method: Literal["GET", "POST"]
    url: str
    body: str = ""


def check_ping_url(field: str, text: str) -> None:
    form, url = _form_and_url(text)
    if form is None:
        raise InvalidInput(field, f"begins with an unknown form: before the + stands one of {', '.join(FORMS)}")
    parts = split_url(field, url)
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(field, "must not hold a user or password")
    if parts.fragment or "#" in url:
        raise InvalidInput(field, "must not hold a fragment (#)")
    if HIDDEN in url:
        raise InvalidInput(field, f"holds {HIDDEN}, which stands for a hidden secret: send the address itself")


def request_for(ping_url: str, report: Report) -> PingRequest | None:
    """The request that tells the service at this address; None if its form has none for this event."""
    form, url = _form_and_url(ping_url)
    match form:
        case "cronitor":
            return _cronitor(url, report)
        case "sentry":
            return _sentry(url, report)
        case "plain":
            return PingRequest("GET", url) if report.event == "success" else None
        case _:
            return _healthchecks(url, report)


def _form_and_url(text: str) -> tuple[Form | None, str]:
    """The form of the address and the address itself. None: a prefix that is no form."""
    scheme, colon, rest = text.partition("://")
    prefix, plus, scheme = scheme.rpartition("+")
    if plus:
        return next((form for form in FORMS if form == prefix), None), f"{scheme}{colon}{rest}"
    try:
        host = urlsplit(text).hostname or ""
    except ValueError:  # no URL, as `check_ping_url` will say
        host = ""
    for name, form in _HOSTS.items():
        if host == name or host.endswith(f".{name}"):
            return form, text
    return "healthchecks", text


def _healthchecks(url: str, report: Report) -> PingRequest:
    failed = "/fail" if not report.exit_status else f"/{min(report.exit_status, 255)}"
    ends: dict[Event, str] = {"start": "/start", "success": "", "failure": failed, "note": "/log"}
    url = _with(url, path=ends[report.event], query={"rid": str(report.rid)})
    return PingRequest("POST", url, report.message)


def _cronitor(url: str, report: Report) -> PingRequest | None:
    if report.event not in _CRONITOR:
        return None
    query = {"state": _CRONITOR[report.event], "series": str(report.rid)}
    if report.host:
        query["host"] = report.host
    if report.message:
        query["message"] = report.message[:1_000]
    if report.exit_status is not None:
        query["status_code"] = str(report.exit_status)
    if report.seconds is not None:
        query["metric"] = f"duration:{report.seconds:.3f}"
    return PingRequest("GET", _with(url, query=query))


def _sentry(url: str, report: Report) -> PingRequest | None:
    if report.event not in _SENTRY:
        return None
    query = {"status": _SENTRY[report.event], "check_in_id": str(report.rid)}
    if report.seconds is not None:
        query["duration"] = f"{report.seconds:.3f}"
    return PingRequest("GET", _with(url, query=query))


def _with(url: str, *, path: str = "", query: dict[str, str]) -> str:
    """The address with more of a path and more of a query. What it has of a query is kept: an environment, a switch."""
    parts = urlsplit(url)
    longer = parts.path.rstrip("/") + path if path else parts.path
    whole = "&".join(filter(None, (parts.query, urlencode(query, quote_via=quote))))
    return urlunsplit((parts.scheme, parts.netloc, longer, whole, ""))
