"""The requests that watching services get, form by form, and which addresses are refused."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

import pytest

from duly.checks import check_policy
from duly.errors import InvalidInput
from duly.masking import shown_ping_url
from duly.model import Policy
from duly.pings import Event, PingRequest, Report, request_for

RID = UUID("7c1f0f5e-6a52-4f5b-9f0e-0d8f6d6d2f11")


def asked(url: str, event: Event, **more: object) -> tuple[str, str, dict[str, str]] | None:
    """Method, address without query, and query of the request."""
    request = request_for(url, Report(event, RID, **more))  # type: ignore[arg-type]
    if request is None:
        return None
    parts = urlsplit(request.url)
    return request.method, f"{parts.scheme}://{parts.netloc}{parts.path}", dict(parse_qsl(parts.query))


@pytest.mark.parametrize("url", ["https://hc-ping.com/key/slug", "healthchecks+https://hc.internal:8000/key/slug/"])
def test_healthchecks_gets_start_end_exit_status_and_notes_with_one_id(url: str) -> None:
    base = url.removeprefix("healthchecks+").rstrip("/")
    for event, path in (("start", "/start"), ("failure", "/fail"), ("note", "/log")):
        assert asked(url, event) == ("POST", base + path, {"rid": str(RID)})  # type: ignore[arg-type]
    found = asked(url, "success")
    assert found is not None
    assert (found[0], found[1].rstrip("/"), found[2]) == ("POST", base, {"rid": str(RID)})
    assert asked(url, "failure", exit_status=3) == ("POST", f"{base}/3", {"rid": str(RID)})
    assert asked(f"{url}?create=1", "start") == ("POST", f"{base}/start", {"create": "1", "rid": str(RID)})
    request = request_for(url, Report("failure", RID, "it broke"))
    assert request is not None
    assert request.body == "it broke"


@pytest.mark.parametrize(
    "url", ["https://cronitor.link/p/key/job?env=a%20b", "cronitor+https://c.internal/p/key/job?env=a%20b"]
)
def test_cronitor_gets_states_of_one_series(url: str) -> None:
    base = url.removeprefix("cronitor+").partition("?")[0]
    own = {"env": "a b", "series": str(RID)}
    assert asked(url, "start", host="node:1") == ("GET", base, {**own, "state": "run", "host": "node:1"})
    ended = {"state": "complete", "metric": "duration:1.500", "message": "run x"}
    assert asked(url, "success", seconds=1.5, message="run x") == ("GET", base, {**own, **ended})
    assert asked(url, "failure", exit_status=2) == ("GET", base, {**own, "state": "fail", "status_code": "2"})
    assert asked(url, "note") is None


@pytest.mark.parametrize(
    "url",
    [
        "https://o0.ingest.sentry.io/api/0/cron/nightly/abc/?environment=prod",
        "sentry+http://s:9000/api/0/cron/nightly/abc/?environment=prod",
    ],
)
def test_sentry_gets_check_ins(url: str) -> None:
    base = url.removeprefix("sentry+").partition("?")[0]
    own = {"environment": "prod", "check_in_id": str(RID)}
    assert asked(url, "start") == ("GET", base, {**own, "status": "in_progress"})
    assert asked(url, "success", seconds=2) == ("GET", base, {**own, "status": "ok", "duration": "2.000"})
    assert asked(url, "failure") == ("GET", base, {**own, "status": "error"})
    assert asked(url, "note") is None


def test_the_plain_form_tells_of_successes_alone() -> None:
    url = "plain+https://up.internal/api/push/key?status=up"
    assert request_for(url, Report("success", RID)) == PingRequest("GET", url.removeprefix("plain+"))
    for event in ("start", "failure", "note"):
        assert asked(url, event) is None


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://hc-ping.com/key-0123456789", "must begin with https"),
        ("hc-ping.com/key-0123456789", "must begin with https"),
        ("pagers+https://hc-ping.com/key-0123456789", "unknown form"),
        ("sentry+ftp://host/key-0123456789", "must begin with https"),
        ("https:///key-0123456789", "must name a host"),
        ("https://[::1/key-0123456789", "is not a URL"),
        ("https://host:x/key-0123456789", "is not a URL"),
        ("https://me:key-0123456789@host/", "user or password"),
        ("https://host/a#key-0123456789", "fragment"),
        ("https://hc-ping.com/***", "hidden secret"),
        ("https://host/" + "key-0123456789" * 200, "1 to 2048 characters"),
        ("", "1 to 2048 characters"),
        (7, "must be a string"),
    ],
)
def test_a_wrong_address_is_refused_by_name_and_not_repeated(url: object, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as refused:
        check_policy(Policy(ping_url=url))  # type: ignore[arg-type]
    assert refused.value.field == "ping_url"
    assert "0123456789" not in str(refused.value)


def test_only_the_host_of_an_address_is_shown() -> None:
    assert shown_ping_url(None) is None
    assert shown_ping_url("sentry+https://s:9000/cron/a/key?b=c") == "sentry+https://s:9000/***"
    assert shown_ping_url("https://hc-ping.com?key") == "https://hc-ping.com/***"
