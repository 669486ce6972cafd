"""Sends pings. Needs the extra `duly[http]`: import this module only where httpx is installed."""

from __future__ import annotations

import asyncio

import httpcore
import httpx

from duly.pings import PingRequest
from duly.worker.pings import MAX_SENDING, Undelivered
from duly.worker.targets.connecting import EgressRefused, GuardedBackend
from duly.worker.targets.egress import Egress

# Of one try, from the name's resolution to the answer's status.
_SECONDS = 10.0
_CONNECT_SECONDS = 5.0
_KEEP_ALIVE_SECONDS = 1.5
_RETRIED = frozenset({408, 425, 429})


class PingSender:
    """Sends pings to the addresses that HTTP targets may reach, over connections of its own. Follows no redirects."""

    def __init__(self, *, egress: Egress, version: str) -> None:
        self._agent = f"duly/{version}".encode()
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=httpx.create_ssl_context(),
            max_connections=None,
            max_keepalive_connections=MAX_SENDING,
            keepalive_expiry=_KEEP_ALIVE_SECONDS,
            network_backend=GuardedBackend(egress),
        )

    async def send(self, request: PingRequest) -> None:
        try:
            url = httpx.URL(request.url)
        except (httpx.InvalidURL, ValueError):
            raise Undelivered("it is not an address that can be called", again=False) from None
        headers = [(b"Host", url.netloc), (b"User-Agent", self._agent), (b"Accept", b"*/*")]
        body = request.body.encode() if request.method == "POST" else None
        if body is not None:
            headers += [(b"Content-Type", b"text/plain; charset=utf-8")]
        try:
            async with (
                asyncio.timeout(_SECONDS),
                self._pool.stream(
                    request.method,
                    httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                    headers=headers,
                    content=body,
                    extensions={"timeout": {"connect": _CONNECT_SECONDS}},
                ) as response,
            ):
                status = response.status
        except EgressRefused as refused:
            raise Undelivered(str(refused), again=False) from None
        except (TimeoutError, httpcore.TimeoutException):
            raise Undelivered(f"no answer within {_SECONDS:g} s", again=True) from None
        except httpcore.LocalProtocolError:
            # The error's own message may hold a part of the address.
            raise Undelivered("it is not an address that HTTP can carry", again=False) from None
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
            raise Undelivered(f"the connection failed ({type(error).__name__})", again=True) from None
        if not 200 <= status < 300:
            raise Undelivered(f"it was answered {status}", again=status >= 500 or status in _RETRIED)

    async def close(self) -> None:
        await self._pool.aclose()
