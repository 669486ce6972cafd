"""Jobs that call an endpoint: a real worker on a real store, and a real HTTP server on loopback that it calls."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import hmac
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import pytest

from duly.config import Settings
from duly.errors import ConfigError, InvalidInput
from duly.model import DEFAULT_TENANT, JobRequest, Policy, Run
from duly.node import running_worker
from duly.operations import StoreOperations
from duly.store.pool import Pool
from duly.tracing import incoming
from duly.worker.targets import egress, making
from duly.worker.targets.answers import retry_after
from duly.worker.targets.connecting import is_own
from duly.worker.targets.http import header_text
from duly.worker.worker import Worker
from harness.endpoint import (
    Call,
    Endpoint,
    flood,
    header_flood,
    refusal_cut_off,
    reply,
    reset_midway,
    silence,
    trickle,
)
from harness.store import count
from harness.waiting import eventually

CERTIFICATE = Path(__file__).parents[2] / "harness" / "localhost.pem"
SECRET = "sEcReT-token-0123456789"


class Caller:
    """Submits jobs that call endpoints, and runs a worker that may reach all of loopback by default."""

    def __init__(self, pool: Pool, settings: Settings, store_operations: StoreOperations) -> None:
        self.pool = pool
        self.settings = settings
        self.store_operations = store_operations

    @asynccontextmanager
    async def working(self, **changes: Any) -> AsyncIterator[Worker]:
        settings = self.settings.model_copy(update={"egress_allow": "127.0.0.0/8", **changes})
        async with running_worker(self.pool, {}, settings) as worker:
            yield worker

    async def submit(self, url: str, payload: Any = None, **options: Any) -> str:
        tenant = options.pop("tenant", DEFAULT_TENANT)
        fields: tuple[str, ...] = ("method", "headers", "secret_headers")
        target = {key: options.pop(key) for key in fields if key in options}
        job = {key: options.pop(key) for key in ("name", "payload_ref") if key in options}
        request = JobRequest(
            handler={"type": "http", "url": url, **target},
            payload={} if payload is None else payload,
            policy=Policy(**{"retry_backoff": "immediate", **options}),
            **job,
        )
        return str((await self.store_operations.for_tenant(tenant).submit(request)).job_id)

    async def run_of(self, job_id: str, tenant: str = DEFAULT_TENANT) -> Run:
        return (await self.store_operations.for_tenant(tenant).runs.page(job_id)).items[0]

    async def has_succeeded(self, job_id: str, tenant: str) -> bool:
        return (await self.run_of(job_id, tenant)).status == "succeeded"

    async def reaches(self, job_id: str, *statuses: str) -> Run:
        async def there() -> bool:
            return (await self.run_of(job_id)).status in statuses

        await eventually(there, seconds=30)
        return await self.run_of(job_id)

    async def ends(self, job_id: str) -> Run:
        return await self.reaches(job_id, "succeeded", "dead")

    async def outcome(self, url: str, payload: Any = None, *, worker: dict[str, Any] | None = None, **job: Any) -> Run:
        """The run of one call, after its last attempt."""
        job_id = await self.submit(url, payload, **job)
        async with self.working(**(worker or {})):
            return await self.ends(job_id)

    async def error(self, url: str, *, worker: dict[str, Any] | None = None, **job: Any) -> str:
        """The error message of a call whose only attempt fails."""
        run = await self.outcome(url, worker=worker, **{"max_retries": 0, **job})
        assert run.status == "dead"
        assert run.error is not None
        return run.error.message


@pytest.fixture
async def caller(pool: Pool, settings: Settings, store_operations: StoreOperations) -> Caller:
    return Caller(pool, settings, store_operations)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with Endpoint.serving() as endpoint:
        yield endpoint


@pytest.fixture
async def secure(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Endpoint]:
    """An endpoint with a certificate for `localhost`, which this worker trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    async with Endpoint.serving(tls=context) as endpoint:
        endpoint.host = "localhost"
        yield endpoint


def assert_signed(call: Call, secret: str) -> None:
    """Checks the signature as a receiver does: by the text of the scheme, without code of Duly."""
    key = base64.b64decode(secret.split("_", 1)[1])
    signed = f"{call.headers['webhook-id']}.{call.headers['webhook-timestamp']}.".encode() + call.body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    given = [signature.split(",", 1) for signature in call.headers["webhook-signature"].split(" ")]
    assert ["v1", expected] in given
    assert abs(int(call.headers["webhook-timestamp"]) - time.time()) < 300


async def store_secret(pool: Pool, tenant: str = "default") -> str:
    """The secret that receivers of the tenant's calls have."""
    rows = await pool.query("select encode(webhook_secret, 'base64') as text from duly.store")
    return derived("whsec_" + str(rows[0]["text"]), tenant)


def derived(secret: str, tenant: str = "default") -> str:
    """A tenant's secret from the store's, by the steps of RFC 5869."""
    key = hmac.new(bytes(32), base64.b64decode(secret.split("_", 1)[1]), hashlib.sha256).digest()
    info = f"duly webhook of tenant {tenant}".encode()
    return "whsec_" + base64.b64encode(hmac.new(key, info + b"\x01", hashlib.sha256).digest()).decode()


# Requests


async def test_a_call_brings_the_payload_and_says_which_run_it_is(caller: Caller, endpoint: Endpoint) -> None:
    url = endpoint.on("/hook?a=1", reply(200, '{"taken": [1, null]}', content_type="application/json"))
    payload = {"text": "Zoë", "n": [1, 2.5, None]}
    job_id = await caller.submit(
        url,
        payload,
        headers={"X-Team": " ops ", "accept": "application/json"},
        secret_headers={"Authorization": f"Bearer {SECRET}"},
        payload_ref="s3://bucket/a%20b/ü",
    )
    async with caller.working():
        run = await caller.ends(job_id)
    assert run.status == "succeeded"
    assert run.result == {
        "status": 200,
        "headers": {"content-type": "application/json"},
        "body": {"taken": [1, None]},
    }
    (call,) = endpoint.calls
    assert (call.method, json.loads(call.body)) == ("POST", payload)
    assert_signed(call, await store_secret(caller.pool))
    expected = {
        "host": f"127.0.0.1:{endpoint.port}",
        "content-type": "application/json",
        "accept": "application/json",
        "accept-encoding": "identity",
        "x-team": "ops",
        "authorization": f"Bearer {SECRET}",
        "idempotency-key": run.idempotency_key,
        "webhook-id": run.run_id,
        "duly-run-id": run.run_id,
        "duly-job-id": job_id,
        "duly-tenant": "default",
        "duly-attempt": "1",
        "duly-scheduled-at": run.scheduled_at.isoformat().replace("+00:00", "Z"),
        "duly-payload-ref": "s3://bucket/a%20b/%C3%BC",
    }
    assert {name: call.headers.get(name) for name in expected} == expected
    assert len(call.headers["duly-fencing-token"]) == 36
    assert call.headers["user-agent"].startswith("duly/")
    version, trace, span, flags = call.headers["traceparent"].split("-")
    # Nobody traces it, and it says so.
    assert (version, len(trace), len(span), flags) == ("00", 32, 16, "00")
    assert len(call.raw) == len(call.headers), "a header was sent twice"


async def test_get_and_delete_bring_no_body_and_are_signed_all_the_same(caller: Caller, endpoint: Endpoint) -> None:
    url = endpoint.on("/", reply(204))
    async with caller.working():
        for method in ("PUT", "PATCH", "GET", "DELETE"):
            assert (await caller.ends(await caller.submit(url, {"a": 1}, method=method))).status == "succeeded"
    secret = await store_secret(caller.pool)
    for method, call in zip(("PUT", "PATCH", "GET", "DELETE"), endpoint.calls, strict=True):
        assert call.method == method
        assert_signed(call, secret)
        if method in ("GET", "DELETE"):
            assert call.body == b""
            assert "content-type" not in call.headers
            assert call.headers.get("content-length", "0") == "0"
        else:
            assert json.loads(call.body) == {"a": 1}


async def test_while_secrets_rotate_receivers_of_the_old_and_the_new_one_are_content(
    caller: Caller, endpoint: Endpoint
) -> None:
    old, new = ("whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
    await caller.outcome(endpoint.on("/", reply()), worker={"webhook_secret": f"{new},{old}"})
    (call,) = endpoint.calls
    assert_signed(call, derived(old))
    assert_signed(call, derived(new))
    with pytest.raises(AssertionError):
        assert_signed(call, await store_secret(caller.pool))


async def test_a_tenants_secret_confirms_its_own_calls_and_no_other_tenants(caller: Caller, endpoint: Endpoint) -> None:
    """A job of tenant a that calls b's hook, with a body of its choice, does not pass for a job of b."""
    url = endpoint.on("/hook-of-b", reply())
    tenants = ("a", "b", "default", "Zoë / 100%")
    job_ids = {tenant: await caller.submit(url, {"of": "b"}, tenant=tenant) for tenant in tenants}
    async with caller.working():
        for tenant, job_id in job_ids.items():
            await eventually(partial(caller.has_succeeded, job_id, tenant), seconds=30)
    calls = {unquote(call.headers["duly-tenant"]): call for call in endpoint.calls}
    assert set(calls) == set(tenants)
    for tenant, call in calls.items():
        assert_signed(call, await store_secret(caller.pool, tenant))
        for other in {*tenants} - {tenant}:
            with pytest.raises(AssertionError):
                assert_signed(call, await store_secret(caller.pool, other))


@pytest.mark.parametrize("name", ["Duly-Tenant", "duly_tenant", "DULY-Tenant"])
async def test_no_job_says_itself_whose_it_is(caller: Caller, name: str) -> None:
    for field in ("headers", "secret_headers"):
        with pytest.raises(InvalidInput, match="set by Duly itself"):
            await caller.submit("https://example.org/", **{field: {name: "b"}})


async def test_all_attempts_have_one_key_and_a_fencing_token_that_grows(caller: Caller, endpoint: Endpoint) -> None:
    url = endpoint.on("/", reply(503), reply(500, "oops"), reply(200))
    run = await caller.outcome(url, max_retries=5)
    assert (run.status, run.attempt) == ("succeeded", 3)
    assert [attempt.error and attempt.error.message.split(" answered ")[1] for attempt in run.attempts] == [
        "503",
        "500: oops",
        None,
    ]
    sent = [call.headers for call in endpoint.calls]
    assert {headers["idempotency-key"] for headers in sent} == {run.idempotency_key}
    assert {headers["webhook-id"] for headers in sent} == {run.run_id}
    assert [headers["duly-attempt"] for headers in sent] == ["1", "2", "3"]
    tokens = [headers["duly-fencing-token"] for headers in sent]
    assert tokens == sorted(set(tokens))
    assert len({headers["traceparent"].split("-")[1] for headers in sent}) == 1
    assert len({headers["traceparent"].split("-")[2] for headers in sent}) == 3


async def test_a_key_that_no_header_can_carry_arrives_encoded_and_whole(caller: Caller, endpoint: Endpoint) -> None:
    run = await caller.outcome(
        endpoint.on("/", reply()), name="Zoë 世界 100%", idempotency_key_template=" {{name}}:{{year}}"
    )
    assert run.status == "succeeded"
    (call,) = endpoint.calls
    sent = call.headers["idempotency-key"]
    assert sent.isascii()
    assert unquote(sent) == run.idempotency_key
    assert "Zo%C3%AB " in sent


def test_any_text_is_a_safe_header_and_no_two_texts_look_alike() -> None:
    texts = ["a\r\nX-Evil: 1", "\x00", " a", "a ", " ", "", "a%20", "a\t", "é", "%C3%A9", "\x7f", "\ufeff", "a b"]
    encoded = [header_text(text) for text in texts]
    assert len(set(encoded)) == len(texts)
    for text, value in zip(texts, encoded, strict=True):
        assert unquote(value) == text
        assert value == value.strip()
        assert all(" " <= character <= "~" for character in value)


async def test_calls_one_after_another_share_a_connection(caller: Caller, endpoint: Endpoint) -> None:
    async with caller.working():
        for _ in range(3):
            job_id = await caller.submit(endpoint.on("/", reply(200, "x")))
            await caller.ends(job_id)
    assert len(endpoint.calls) == 3
    assert endpoint.connections == 1
    await eventually(lambda: endpoint.gone == 1)


async def test_no_cookie_goes_from_one_job_to_another_and_no_proxy_is_asked(
    caller: Caller, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Endpoint.serving() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url(""))
        url = endpoint.on("/", reply(200, set_cookie="a=b; Path=/"))
        async with caller.working():
            for _ in range(2):
                assert (await caller.ends(await caller.submit(url))).status == "succeeded"
        assert proxy.connections == 0
    assert not any("cookie" in call.headers for call in endpoint.calls)


# The meaning of answers


async def test_an_answer_that_no_retry_mends_goes_to_the_dead_letters_at_once(
    caller: Caller, endpoint: Endpoint
) -> None:
    statuses = (300, 304, 400, 401, 403, 404, 409, 410, 418, 422, 451)
    jobs = {}
    for status in statuses:
        url = endpoint.on(f"/{status}", reply(status, "" if status == 304 else "no: " + "x" * 5000))
        jobs[status] = await caller.submit(url, max_retries=5)
    async with caller.working():
        for status, job_id in jobs.items():
            run = await caller.ends(job_id)
            assert (run.status, run.attempt) == ("dead", 1), status
            assert run.error is not None
            assert run.error.type == "Permanent"
            assert f"POST {endpoint.url(f'/{status}')} answered {status}" in run.error.message
            assert len(run.error.message) < 2300
            assert ("no: xxx" in run.error.message) == (status != 304)
    assert len(endpoint.calls) == len(statuses)


async def test_an_answer_that_may_change_is_tried_again(caller: Caller, endpoint: Endpoint) -> None:
    statuses = (408, 425, 429, 500, 502, 503, 504, 599)
    jobs = {
        status: await caller.submit(endpoint.on(f"/{status}", reply(status, "later")), max_retries=1)
        for status in statuses
    }
    async with caller.working():
        for status, job_id in jobs.items():
            run = await caller.ends(job_id)
            assert (run.status, run.attempt, len(endpoint.to(f"/{status}"))) == ("dead", 2, 2)
            assert run.error is not None
            assert f"answered {status}: later" in run.error.message


async def test_the_next_attempt_waits_as_long_as_the_endpoint_asks(caller: Caller, endpoint: Endpoint) -> None:
    asked: list[tuple[dict[str, str], float]] = [
        ({"retry_after": "120"}, 120),
        ({"retry_after": "9" * 30}, 86_400),
        # The endpoint's clock is wrong by years; it asks for two minutes.
        ({"retry_after": "Fri, 01 Jan 2010 00:02:00 GMT", "date": "Fri, 01 Jan 2010 00:00:00 GMT"}, 120),
        ({"retry_after": "soon"}, 5000),
        ({"retry_after": "-5"}, 5000),
        ({}, 5000),
    ]
    delay = {"retry_backoff": "linear", "retry_delay_seconds": 5000, "retry_max_delay_seconds": 5000}
    jobs = [
        await caller.submit(endpoint.on(f"/{index}", reply(429, **headers)), **delay)
        for index, (headers, _) in enumerate(asked)
    ]
    async with caller.working():
        for job_id, (_, seconds) in zip(jobs, asked, strict=True):
            await caller.reaches(job_id, "retrying")
            query = "select run_at, duly.now() as now from duly.runs where job_id = $1"
            row = (await caller.pool.query(query, UUID(job_id)))[0]
            wait = (row["run_at"] - row["now"]).total_seconds()
            # Jitter adds up to a quarter, but at most a minute if the endpoint asked for the delay. Up to a minute may
            # have passed since.
            assert seconds - 60 <= wait <= seconds * 1.25
            assert seconds == 5000 or wait <= seconds + 60


def test_retry_after_is_read_in_all_its_forms_and_garbage_is_ignored() -> None:
    now = datetime(2026, 3, 8, 9, 30, tzinfo=UTC)
    later = format_datetime(now + timedelta(seconds=90), usegmt=True)
    assert retry_after("0", None, now=now) == 0
    assert retry_after(" 17 ", None, now=now) == 17
    assert retry_after("1.5", None, now=now) == 1.5
    assert retry_after("9" * 5000, None, now=now) == 86_400
    assert retry_after(later, None, now=now) == 90
    assert retry_after(later, "nonsense", now=now) == 90
    assert retry_after(later, format_datetime(now + timedelta(seconds=60), usegmt=True), now=now) == 30
    assert retry_after("Sunday, 08-Mar-26 09:31:30 GMT", None, now=now) == 90
    assert retry_after("Sun, 08 Mar 2020 09:31:30 GMT", None, now=now) == 0
    assert retry_after("Sun, 08 Mar 2099 09:31:30 GMT", None, now=now) == 86_400
    for garbage in ("", " ", "soon", "-1", "1e3", "nan", "inf", "0x10", "1,2", "Sun, 99 Foo 2026 99:99:99 GMT",
                    "²", "١٢", "Sun, 08 Mar 99999 09:31:30 GMT", "\x00", "1 2"):  # fmt: skip
        assert retry_after(garbage, None, now=now) is None, garbage
    assert retry_after(None, None, now=now) is None


async def test_a_redirect_that_changes_the_request_says_where_it_points_and_what_to_do(
    caller: Caller, endpoint: Endpoint
) -> None:
    location = endpoint.on("/new?token=abc", reply())
    for status in (301, 302, 303):
        message = await caller.error(endpoint.on("/", reply(status, location=location)), max_retries=3)
        assert f"answered {status}" in message
        assert endpoint.url("/new") in message
        assert "token" not in message
        assert "307 or 308" in message
    assert [call.path for call in endpoint.calls] == ["/"] * 3


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_that_keeps_the_request_is_followed(caller: Caller, endpoint: Endpoint, status: int) -> None:
    endpoint.on("/b/c", reply(status, location="d?x=1"))
    endpoint.on("/b/d?x=1", reply(200, "there"))
    run = await caller.outcome(
        endpoint.on("/a", reply(status, location="/b/c")),
        {"n": 1},
        method="PUT",
        headers={"X-Team": "ops"},
        secret_headers={"X-Key": SECRET},
    )
    assert run.status == "succeeded"
    assert run.result["body"] == "there"
    assert [call.path for call in endpoint.calls] == ["/a", "/b/c", "/b/d?x=1"]
    for call in endpoint.calls:
        assert (call.method, call.body) == ("PUT", endpoint.calls[0].body)
        assert (call.headers["x-team"], call.headers["x-key"]) == ("ops", SECRET)
        assert call.headers["idempotency-key"] == run.idempotency_key
        assert_signed(call, await store_secret(caller.pool))


async def test_what_the_job_says_to_one_host_is_not_told_to_another(caller: Caller, endpoint: Endpoint) -> None:
    async with Endpoint.serving() as other:
        back = endpoint.on("/back", reply(200))
        parent = f"00-{'1' * 32}-{'2' * 16}-01"
        with incoming({"traceparent": parent, "baggage": "customer=7"}):
            run = await caller.outcome(
                endpoint.on("/", reply(307, location=other.on("/", reply(308, location=back)))),
                headers={"X-Team": "ops", "Content-Type": "application/vnd.example+json"},
                secret_headers={"X-Key": SECRET},
            )
        assert run.status == "succeeded"
        first, last = endpoint.calls
        (elsewhere,) = other.calls
    assert (first.headers["x-team"], first.headers["x-key"]) == ("ops", SECRET)
    assert first.headers["content-type"] == "application/vnd.example+json"
    assert (first.headers["traceparent"], first.headers["baggage"]) == (parent, "customer=7")
    for call in (elsewhere, last):  # also the last: another host chose its address
        assert "x-team" not in call.headers
        assert "baggage" not in call.headers
        assert call.headers["traceparent"] == parent
        assert SECRET not in str(call.raw)
        assert call.headers["content-type"] == "application/json"
        assert call.headers["idempotency-key"] == run.idempotency_key


async def test_redirects_have_an_end(caller: Caller, endpoint: Endpoint) -> None:
    message = await caller.error(endpoint.on("/", reply(307, location="/")), max_retries=3)
    assert "more than 5 times" in message
    assert len(endpoint.calls) == 6


async def test_a_redirect_to_nowhere_is_a_permanent_failure(caller: Caller, endpoint: Endpoint) -> None:
    locations = ("", "ftp://127.0.0.1/", "javascript:alert(1)", "http://h:99999/", "http://[::1/", "file:///x")
    jobs = [
        await caller.submit(endpoint.on(f"/{index}", reply(308, location=location)), max_retries=3)
        for index, location in enumerate(locations)
    ]
    async with caller.working():
        for job_id in jobs:
            run = await caller.ends(job_id)
            assert (run.status, run.attempt) == ("dead", 1)
    assert len(endpoint.calls) == len(locations)


# Answers that are large, slow or broken


async def test_of_a_large_answer_the_beginning_is_kept(caller: Caller, endpoint: Endpoint) -> None:
    text = json.dumps({"text": "é" * 100_000}, ensure_ascii=False)
    run = await caller.outcome(endpoint.on("/", reply(200, text, content_type="application/json")))
    assert run.status == "succeeded"
    assert run.result["truncated"] is True
    assert run.result["body"].startswith('{"text": "éé')
    assert 16_000 < len(run.result["body"].encode()) <= 16 * 1024


async def test_an_answer_without_end_is_not_read_to_its_end(caller: Caller, endpoint: Endpoint) -> None:
    run = await caller.outcome(endpoint.on("/", flood), timeout_seconds=60)
    assert run.status == "succeeded"
    assert run.result["truncated"] is True
    assert len(run.result["body"]) == 16 * 1024
    await eventually(lambda: endpoint.gone == 1)


async def test_of_an_answer_not_more_is_read_than_the_setting_says(caller: Caller, endpoint: Endpoint) -> None:
    url = endpoint.on("/", reply(200, "x" * 3000))
    for limit, kept in ((0, 0), (1000, 1000), (3000, 3000)):
        run = await caller.outcome(url, worker={"http_response_max_bytes": limit})
        assert len(run.result["body"]) == kept
        assert run.result.get("truncated", False) == (limit < 3000)


async def test_headers_without_end_fail_the_attempt(caller: Caller, endpoint: Endpoint) -> None:
    message = await caller.error(endpoint.on("/", header_flood), timeout_seconds=60)
    assert f"127.0.0.1:{endpoint.port}" in message


async def test_a_compressed_answer_is_never_unpacked(caller: Caller, endpoint: Endpoint) -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    run = await caller.outcome(endpoint.on("/", reply(200, bomb[:10_000], content_encoding="gzip")))
    assert run.status == "succeeded"
    assert run.result["headers"] == {"content-encoding": "gzip"}
    assert run.result["body"] == "[10000 bytes, compressed: gzip]"
    message = await caller.error(endpoint.on("/", reply(400, bomb[:10_000], content_encoding="gzip")))
    assert message.endswith("[10000 bytes, compressed: gzip]")


async def test_whatever_the_answer_is_the_run_is_recorded(caller: Caller, endpoint: Endpoint) -> None:
    bodies = (b"[" * 10_000, b"9" * 10_000, b"NaN", b"\xff\xfe\x00", b'"\\u0000 \\ud800"', b"", b"{")
    async with caller.working():
        for body in bodies:
            url = endpoint.on("/", reply(200, body, content_type="application/json"))
            run = await caller.ends(await caller.submit(url))
            assert run.status == "succeeded"
            assert isinstance(run.result["body"], str)
            run = await caller.ends(await caller.submit(endpoint.on("/", reply(400, body))))
            assert run.status == "dead"


@pytest.mark.parametrize("behaviour", [silence, trickle])
async def test_an_answer_that_takes_too_long_ends_with_the_attempt_and_its_connection(
    caller: Caller, endpoint: Endpoint, behaviour: Any
) -> None:
    job_id = await caller.submit(endpoint.on("/", behaviour), timeout_seconds=0.5, max_retries=0)
    async with caller.working():
        run = await caller.ends(job_id)
        assert run.error is not None
        assert run.error.type == "timeout"
        # The worker still runs: the connection is not closed by its end.
        await eventually(lambda: endpoint.gone == 1)


async def test_a_worker_that_is_told_to_stop_closes_its_calls_and_gives_the_runs_back(
    caller: Caller, endpoint: Endpoint
) -> None:
    job_id = await caller.submit(endpoint.on("/", silence))
    async with caller.working() as worker:
        await eventually(lambda: len(endpoint.calls) == 1)
        await worker.claimer.stop()
        worker.stop_now()
        await eventually(lambda: endpoint.gone == 1)
        assert (await caller.reaches(job_id, "queued")).attempt == 0


async def test_a_connection_that_breaks_midway_is_tried_again(caller: Caller, endpoint: Endpoint) -> None:
    url = endpoint.on("/", reset_midway, reply(200, "whole"))
    run = await caller.outcome(url, max_retries=3, secret_headers={"X-Key": SECRET})
    assert (run.status, run.attempt, run.result["body"]) == ("succeeded", 2, "whole")
    attempt, success = run.attempts
    assert success.error is None
    assert attempt.error is not None
    assert f"127.0.0.1:{endpoint.port}" in attempt.error.message
    assert SECRET not in str(attempt)


async def test_a_no_that_breaks_off_is_still_a_no(caller: Caller, endpoint: Endpoint) -> None:
    message = await caller.error(endpoint.on("/", refusal_cut_off), max_retries=3)
    assert "answered 400: becau" in message
    assert len(endpoint.calls) == 1


async def test_an_endpoint_that_echoes_its_request_does_not_reveal_what_is_secret(
    caller: Caller, endpoint: Endpoint
) -> None:
    async def echo(call: Call, writer: asyncio.StreamWriter) -> None:
        status = 200 if call.path == "/good" else 400
        # The last secret lies across the end of the part that is kept.
        body = f"{call.raw!r} {SECRET}\n" + "-" * (16 * 1024 - len(f"{call.raw!r} {SECRET}\n") - 5) + SECRET
        writer.write(reply(status, body))

    secret = {"secret_headers": {"Authorization": f"Bearer {SECRET}"}, "headers": {"Cookie": f"session={SECRET}"}}
    run = await caller.outcome(endpoint.on("/good", echo), **secret)
    assert "'Duly-Attempt', '1'" in run.result["body"]
    message = await caller.error(endpoint.on("/bad", echo), **secret)
    assert "'Duly-Attempt', '1'" in message
    for text in (json.dumps(run.result), message):
        assert "***" in text
        assert SECRET[:5] not in text


@pytest.mark.parametrize("left", [1, len(SECRET) - 1])
async def test_no_part_of_a_secret_is_left_where_an_answer_is_cut(
    caller: Caller, endpoint: Endpoint, left: int
) -> None:
    """The setting that limits the size of an answer cuts it in the middle of a secret."""
    body = b"x" * 50 + SECRET.encode() + b"y" * 50
    url = endpoint.on("/", reply(200, body=body), reply(400, body=body))
    for _ in range(2):
        run = await caller.outcome(
            url, worker={"http_response_max_bytes": 50 + left}, secret_headers={"X-Key": SECRET}, max_retries=0
        )
        kept = run.result["body"] if run.error is None else run.error.message
        assert kept.endswith("x" * 50 + "***")
    url = endpoint.on("/json", reply(200, body=json.dumps({"/": f"{SECRET}/"}).replace("/", "\\/").encode()))
    run = await caller.outcome(url, secret_headers={"X-Key": f"{SECRET}/"})
    assert run.result["body"] == {"/": "***"}, "masked however the endpoint spells it"


# Endpoints that cannot be reached


async def test_an_endpoint_that_is_not_there_is_named_and_tried_again(caller: Caller) -> None:
    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        run = await caller.outcome(f"http://127.0.0.1:{port}/", max_retries=1, secret_headers={"X-Key": SECRET})
    assert (run.status, run.attempt) == ("dead", 2)
    assert run.error is not None
    assert run.error.message == f"127.0.0.1:{port} could not be reached: Connection refused"
    assert SECRET not in str(run)


async def test_a_name_that_nobody_knows_is_named(caller: Caller) -> None:
    run = await caller.outcome("http://nobody.invalid/", max_retries=1)
    assert (run.status, run.attempt) == ("dead", 2)
    assert run.error is not None
    assert "nobody.invalid could not be reached: the name nobody.invalid cannot be resolved: " in run.error.message
    assert "Unknown" not in run.error.message


async def test_a_name_that_cannot_be_is_a_permanent_failure(caller: Caller) -> None:
    assert "name of a host" in await caller.error(f"http://{'x' * 64}.example/", max_retries=3)


async def test_a_handshake_that_never_ends_is_given_up_and_closed(caller: Caller) -> None:
    """The server takes connections and sends nothing, where TLS is expected."""
    open_connections: set[asyncio.StreamWriter] = set()
    seen = 0

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        seen += 1
        open_connections.add(writer)
        while await reader.read(1000):
            pass
        open_connections.discard(writer)
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    # After the timeout for connecting …
    message = await caller.error(url, worker={"http_connect_timeout_seconds": 0.3})
    assert "could not be reached within 0.3 s" in message
    await eventually(lambda: seen == 1 and not open_connections)
    # … and after the attempt's own timeout.
    job_id = await caller.submit(url, timeout_seconds=0.3, max_retries=0)
    async with caller.working():
        run = await caller.ends(job_id)
        assert run.error is not None
        assert run.error.type == "timeout"
        await eventually(lambda: seen == 2 and not open_connections)
    server.close()


# TLS


async def test_tls_is_checked_against_the_name_although_an_address_is_connected_to(
    caller: Caller, secure: Endpoint
) -> None:
    secure.on("/", reply(200, "sealed"))
    run = await caller.outcome(secure.url("/"))
    assert (run.status, run.result["body"]) == ("succeeded", "sealed")
    # The certificate is for the name only, so a server that is called by its address cannot prove its identity.
    message = await caller.error(secure.url("/", host="127.0.0.1"))
    assert f"127.0.0.1:{secure.port} could not be reached" in message
    assert "certificate" in message
    assert len(secure.calls) == 1


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    caller: Caller, secure: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    assert "certificate" in await caller.error(secure.on("/", reply()))
    assert secure.calls == []


async def test_what_began_encrypted_is_not_sent_on_in_the_open(
    caller: Caller, secure: Endpoint, endpoint: Endpoint
) -> None:
    message = await caller.error(secure.on("/", reply(307, location=endpoint.on("/", reply()))), max_retries=3)
    assert "from https to" in message
    assert endpoint.connections == 0


# Addresses that the worker may not reach

EVIL = [
    "127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f.1", "0x7f000001", "017700000001", "0177.1", "0177.0.0.1", "0",
    "0.0.0.0", "127.8.8.8", "localhost", "LOCALHOST", "127。0。0。1", "[::]", "[::1]", "[::127.0.0.1]",
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b::127.0.0.1]",
    "[2002:7f00:1::]", "169.254.169.254", "[::ffff:169.254.169.254]", "[64:ff9b::a9fe:a9fe]", "[fd00:ec2::254]",
    "10.0.0.1", "192.168.1.1", "172.16.0.1", "100.64.0.1", "[fe80::1]", "255.255.255.255", "224.0.0.1",
]  # fmt: skip


async def test_no_spelling_of_an_address_leads_where_the_worker_may_not_go(caller: Caller, endpoint: Endpoint) -> None:
    endpoint.on("/", reply())
    jobs = {host: await caller.submit(endpoint.url("/", host=host), max_retries=3) for host in EVIL}
    async with caller.working(egress_allow="", http_connect_timeout_seconds=5):
        for host, job_id in jobs.items():
            run = await caller.ends(job_id)
            assert run.error is not None
            assert (run.status, run.attempt, run.error.type) == ("dead", 1, "Permanent"), (host, run.error)
            if host != "0177.0.0.1":  # refused earlier: such a number is not valid in a URL
                assert "DULY_EGRESS_ALLOW" in run.error.message, host
    assert endpoint.connections == 0


async def test_where_loopback_is_allowed_every_spelling_of_it_leads_there(caller: Caller, endpoint: Endpoint) -> None:
    """Without this test, the one above could pass because no spelling leads to loopback anyway."""
    endpoint.on("/", reply())
    async with caller.working():
        for host in ("127.1", "2130706433", "0x7f.1", "localhost", "[::ffff:127.0.0.1]"):
            run = await caller.ends(await caller.submit(endpoint.url("/", host=host), max_retries=0))
            assert run.status == "succeeded", (host, run.error)


async def test_a_host_can_be_allowed_by_its_name(caller: Caller, endpoint: Endpoint) -> None:
    endpoint.on("/", reply())
    allowed = {"egress_allow": "localhost"}
    assert (await caller.outcome(endpoint.url("/", host="localhost"), worker=allowed)).status == "succeeded"
    assert "127.0.0.1, a loopback address" in await caller.error(endpoint.url("/", host="127.0.0.1"), worker=allowed)
    assert len(endpoint.calls) == 1


async def test_a_redirect_leads_nowhere_that_the_job_itself_may_not_go(caller: Caller, endpoint: Endpoint) -> None:
    async with Endpoint.serving(host="127.0.0.2") as inside:
        inside.on("/", reply())
        for location in (inside.url("/"), f"http://2130706434:{inside.port}/", "http://169.254.169.254/latest/"):
            message = await caller.error(
                endpoint.on("/", reply(307, location=location)), worker={"egress_allow": "127.0.0.1"}, max_retries=3
            )
            assert "DULY_EGRESS_ALLOW" in message
        assert inside.connections == 0


async def test_an_address_of_the_workers_own_machine_is_not_reached_although_it_is_public(
    caller: Caller, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Loopback stands in for a public address, which this machine may lack.
    monkeypatch.setattr(egress, "_refusal_of_ipv4", lambda address: None)
    endpoint.on("/", reply())
    url = endpoint.url("/", host="127.0.0.1")
    message = await caller.error(url, worker={"egress_allow": ""}, max_retries=3)
    assert "127.0.0.1, an address of the worker's own machine" in message
    assert "DULY_EGRESS_ALLOW" in message
    closed = await caller.error("http://127.0.0.1:9/", worker={"egress_allow": ""}, max_retries=3)
    assert closed == message, "the message must not tell whether a server listens there"
    assert endpoint.connections == 0
    for allowed in ("127.0.0.1", "127.0.0.0/8"):
        assert (await caller.outcome(url, worker={"egress_allow": allowed})).status == "succeeded"
    named = await caller.outcome(endpoint.url("/", host="localhost"), worker={"egress_allow": "localhost"})
    assert named.status == "succeeded"


def test_whether_an_address_is_the_machines_own_is_known_for_both_families() -> None:
    assert is_own("127.0.0.1")
    assert is_own("::ffff:127.0.0.1")
    assert not is_own("198.51.100.7")
    assert not is_own("2001:db8::7")


class Rebinding:
    """A resolver that gives another answer for one name each time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0
        loop = asyncio.get_running_loop()
        real = loop.getaddrinfo

        async def getaddrinfo(host: Any, port: Any, **options: Any) -> Any:
            if host not in ("rebinding.example", b"rebinding.example"):
                return await real(host, port, **options)
            self.asked += 1
            addresses = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)


async def test_a_name_that_changes_between_check_and_connection_gains_nothing(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Endpoint.serving(host="127.0.0.2") as outside, Endpoint.serving(port=outside.port) as inside:
        inside.on("/", reply())
        url = outside.url("/", host="rebinding.example")
        outside.on("/", reply(503), reply(200))
        resolver = Rebinding(monkeypatch, ["127.0.0.2"], ["127.0.0.1"])
        run = await caller.outcome(url, worker={"egress_allow": "127.0.0.2"}, max_retries=0)
        assert run.error is not None
        assert "answered 503" in run.error.message
        assert (len(outside.calls), inside.connections, resolver.asked) == (1, 0, 1)
        assert outside.calls[0].headers["host"] == f"rebinding.example:{outside.port}"
        # For the next connection the name is resolved again. It then leads inside and is refused.
        assert "rebinding.example leads to 127.0.0.1" in await caller.error(url, worker={"egress_allow": "127.0.0.2"})
        assert (len(outside.calls), inside.connections) == (1, 0)


async def test_of_several_addresses_only_those_that_may_be_reached_are_tried(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Endpoint.serving(host="127.0.0.2") as outside, Endpoint.serving(port=outside.port) as inside:
        outside.on("/", reply())
        # The first address is not allowed, and no server listens at the second.
        Rebinding(monkeypatch, ["127.0.0.1", "127.0.0.3", "127.0.0.2"])
        run = await caller.outcome(
            outside.url("/", host="rebinding.example"), worker={"egress_allow": "127.0.0.2,127.0.0.3"}
        )
        assert run.status == "succeeded"
        assert (outside.connections, inside.connections) == (1, 0)


# Workers without the extra, or with a bad setting


async def test_a_worker_without_the_extra_leaves_the_run_to_one_that_has_it(
    caller: Caller, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await caller.submit(endpoint.on("/", reply()))
    with monkeypatch.context() as patched:
        patched.setattr(making, "find_spec", lambda name: None)
        async with caller.working() as worker:
            await eventually(lambda: _returned(caller))
            await worker.claimer.stop()
    run = await caller.run_of(job_id)
    assert (run.status, run.attempt, endpoint.connections) == ("queued", 0, 0)
    async with caller.working():
        assert (await caller.ends(job_id)).status == "succeeded"


async def _returned(caller: Caller) -> bool:
    """Whether the run is in the queue again, to start later."""
    return await count(caller.pool, "runs", "run_at > duly.now()") == 1


@pytest.mark.parametrize(("setting", "value"), [("egress_allow", "10.0.0.1/8"), ("webhook_secret", "whsec_short")])
async def test_a_worker_with_a_bad_setting_does_not_start(caller: Caller, setting: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"DULY_{setting.upper()}"):
        async with caller.working(**{setting: value}):
            pass
    assert await count(caller.pool, "nodes") == 0
