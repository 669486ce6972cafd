"""Calls HTTP endpoints. Needs the extra `duly[http]`: import this module only where httpx is installed.

httpx parses URLs and makes the TLS context; the calls themselves go through the connection pool below it (httpcore). A
client of httpx would keep cookies from one job to the next, and has no hook for guarding connections.
"""

from __future__ import annotations

import os
import socket
import ssl
import string
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from datetime import UTC
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpcore
import httpx

from duly.clock import Clock
from duly.errors import Permanent
from duly.model import DEFAULT_TENANT
from duly.signing import sign, tenant_secret
from duly.worker.handler.context import Context
from duly.worker.targets.answers import KEPT_BYTES, CallFailed, HttpAnswer, judge, short_url
from duly.worker.targets.connecting import EgressRefused, GuardedBackend
from duly.worker.targets.egress import Egress

if TYPE_CHECKING:
    from duly.tracing.otel import RequestSpan
    from duly.worker.execution import Execution

_WITHOUT_BODY = frozenset({"GET", "DELETE"})
# Redirects that repeat the same request elsewhere.
_SENT_ON = frozenset({307, 308})
_MAX_REDIRECTS = 5
# Common servers close an idle connection after two seconds or more. A call at that moment would fail its attempt, so
# idle connections are closed before that.
_KEEP_ALIVE_SECONDS = 1.5
_MAX_IDLE_CONNECTIONS = 100
# Bytes of a response read into memory: more than is kept, to see whether that was all of it.
_HELD_BYTES = KEPT_BYTES + 1024
# Tenants whose derived secrets are cached.
_MAX_TENANTS = 1_000
_VISIBLE = string.ascii_letters + string.digits + string.punctuation


class HttpTarget:
    """Calls endpoints through one connection pool per worker. The worker's concurrency bounds the number of calls."""

    def __init__(
        self,
        *,
        egress: Egress,
        secrets: Sequence[bytes],
        clock: Clock,
        connect_timeout: float,
        response_max_bytes: int,
        version: str,
    ) -> None:
        self._secrets = secrets
        self._of_tenants: dict[str, Sequence[bytes]] = {}
        self._clock = clock
        self._connect_timeout = connect_timeout
        self._response_max_bytes = response_max_bytes
        self._agent = f"duly/{version}"
        self._pool = httpcore.AsyncConnectionPool(
            # SSL_CERT_FILE and SSL_CERT_DIR are used. Proxies of the environment are not: a proxy would resolve names
            # itself, and the addresses would go unchecked.
            ssl_context=httpx.create_ssl_context(),
            # Waiting for a free connection here would only hide that the worker has taken too much.
            max_connections=None,
            max_keepalive_connections=_MAX_IDLE_CONNECTIONS,
            keepalive_expiry=_KEEP_ALIVE_SECONDS,
            network_backend=GuardedBackend(egress),
        )

    async def call(self, execution: Execution, target: Mapping[str, Any], payload: str) -> dict[str, Any]:
        method: str = target.get("method", "POST")
        body = None if method in _WITHOUT_BODY else payload.encode()
        url = _parse_url(target["url"])
        headers = self._headers(execution, body)
        jobs_own = {**target.get("headers", {}), **target.get("secret_headers", {})}
        told = True
        execution.begin()
        for _ in range(_MAX_REDIRECTS + 1):
            shown = short_url(str(url))
            called = f"{method} {shown}"
            with _span_of(execution, method, url, shown) as span:
                trace = execution.trace_headers if span is None else span.headers()
                if not told:
                    # The trace goes on, but what its baggage says is for the first host alone.
                    trace = {name: trace[name] for name in ("traceparent", "tracestate") if name in trace}
                answer = await self._ask(method, url, _merged(headers | trace, jobs_own), body, called)
                if span is not None:
                    span.answered(answer.status)
            if answer.status not in _SENT_ON:
                return judge(answer, called, mask=execution.mask, now=self._clock.now())
            moved = _redirected(url, answer.headers.get("location"), called)
            if _origin(moved) != _origin(url):
                # The job's own headers are for the first host alone, even if another one redirects back to it.
                jobs_own, told = {}, False
            url = moved
        raise Permanent(f"{called} was redirected more than {_MAX_REDIRECTS} times")

    async def close(self) -> None:
        await self._pool.aclose()

    async def _ask(
        self, method: str, url: httpx.URL, headers: Mapping[str, str], body: bytes | None, called: str
    ) -> HttpAnswer:
        where = url.netloc.decode()
        try:
            async with self._pool.stream(
                method,
                httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=[(b"Host", url.netloc), *((n.encode(), v.encode("latin-1")) for n, v in headers.items())],
                content=body,
                # The attempt as a whole is timed by the executor, which ends an answer that trickles.
                extensions={"timeout": {"connect": self._connect_timeout}},
            ) as response:
                return await self._read(response)
        except EgressRefused as refused:
            raise Permanent(str(refused)) from None
        except httpcore.LocalProtocolError:
            # The error's own message holds the header's value, which may be secret.
            raise Permanent(f"{called} cannot be sent: its headers or its URL are not what HTTP allows") from None
        except httpcore.ConnectTimeout:
            raise CallFailed(f"{where} could not be reached within {self._connect_timeout:g} s") from None
        except httpcore.ConnectError as error:
            raise CallFailed(f"{where} could not be reached: {_innermost(error)}") from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            raise CallFailed(f"the connection to {where} failed: {_innermost(error)}") from None

    async def _read(self, response: httpcore.Response) -> HttpAnswer:
        """Reads the answer up to the limit. The connection is closed if a part is left unread."""
        headers: dict[str, str] = {}
        for name, value in response.headers:
            headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
        kept = bytearray()
        size, whole = 0, False
        if self._response_max_bytes and response.status not in _SENT_ON:
            try:
                async with aclosing(response.aiter_stream()) as chunks:  # type: ignore[type-var]
                    async for chunk in chunks:
                        kept += chunk[: min(_HELD_BYTES, self._response_max_bytes) - len(kept)]
                        size += len(chunk)
                        if size > self._response_max_bytes:
                            break
                    else:
                        whole = size == len(kept)
            except (httpcore.NetworkError, httpcore.ProtocolError, OSError):
                # The status has arrived. Only a success needs its whole body.
                if 200 <= response.status < 300:
                    raise
        return HttpAnswer(response.status, headers, bytes(kept), whole)

    def _headers(self, execution: Execution, body: bytes | None) -> dict[str, str]:
        """Duly's own headers, the same for every redirect of a call."""
        context = Context(execution)
        run_id, tenant = context.run_id, execution.run.tenant or DEFAULT_TENANT
        headers = {
            "User-Agent": self._agent,
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            "Idempotency-Key": header_text(context.idempotency_key),
            "Duly-Run-Id": run_id,
            "Duly-Job-Id": context.job_id,
            "Duly-Tenant": header_text(tenant),
            "Duly-Attempt": str(context.attempt),
            "Duly-Fencing-Token": context.fencing_token,
            "Duly-Scheduled-At": context.scheduled_at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
            **sign(
                self._secrets_of(tenant),
                message_id=run_id,
                timestamp=self._clock.now_us() // 1_000_000,
                body=body or b"",
            ),
        }
        if context.payload_ref is not None:
            # A URI has percent signs of its own, so they are not encoded again.
            headers["Duly-Payload-Ref"] = quote(context.payload_ref, safe=_VISIBLE)
        if body is not None:
            headers["Content-Type"] = "application/json"
        return headers

    def _secrets_of(self, tenant: str) -> Sequence[bytes]:
        if (secrets := self._of_tenants.get(tenant)) is None:
            if len(self._of_tenants) >= _MAX_TENANTS:
                self._of_tenants.clear()
            secrets = self._of_tenants[tenant] = [tenant_secret(secret, tenant) for secret in self._secrets]
        return secrets


def header_text(text: str) -> str:
    """Any text as a header's value: characters that HTTP cannot carry are percent-encoded.

    So are percent signs themselves, so that two keys never look alike: decoding gives back exactly the text.
    """
    encoded = quote(text, safe=_VISIBLE.replace("%", "") + " ")
    # HTTP strips spaces at the ends.
    inner = encoded.strip(" ")
    before = len(encoded) - len(encoded.lstrip(" "))
    return "%20" * before + inner + "%20" * (len(encoded) - before - len(inner))


def _merged(headers: Mapping[str, str], jobs_own: Mapping[str, str]) -> dict[str, str]:
    """Merges headers; the job's own win. A submit checks which of Duly's headers a job may not name."""
    named = {name.lower() for name in jobs_own}
    merged = {name: value for name, value in headers.items() if name.lower() not in named}
    own = {name.lower(): (name, value.strip(" \t")) for name, value in jobs_own.items()}
    return merged | dict(own.values())


def _parse_url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError) as error:
        raise Permanent(f"{short_url(text)!r} is not a URL that can be called: {error}") from None
    if url.scheme not in ("http", "https") or not url.host or not 0 < (url.port or 80) < 65536:
        raise Permanent(f"{short_url(text)!r} is not a URL that can be called")
    return url


def _redirected(url: httpx.URL, location: str | None, called: str) -> httpx.URL:
    if not location:
        raise Permanent(f"{called} answered with a redirect that names no location")
    try:
        moved = url.join(location)
    except (httpx.InvalidURL, ValueError):
        raise Permanent(f"{called} was redirected to {short_url(location)!r}, which is not a URL") from None
    if url.scheme == "https" and moved.scheme == "http":
        raise Permanent(f"{called} was redirected from https to {short_url(location)!r}: it is not sent unencrypted")
    return _parse_url(str(moved))


def _span_of(
    execution: Execution, method: str, url: httpx.URL, shown: str
) -> AbstractContextManager[RequestSpan | None]:
    span = None
    if execution.span is not None:
        span = execution.span.request(method, url.host, _origin(url)[2], shown)
    return nullcontext() if span is None else span


def _origin(url: httpx.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}[url.scheme]


def _innermost(error: BaseException) -> str:
    """The operating system's own message: libraries around it say less. Unresolved names have a message of ours."""
    while isinstance(inner := error.__cause__ or error.__context__, OSError) and not isinstance(inner, socket.gaierror):
        error = inner
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
