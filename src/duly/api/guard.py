"""What stands before every route: who may ask, and the headers that every answer carries.

Duly serves loopback without authentication, so the one stranger who can reach it is a web page in the user's own
browser. Two doors are closed to it. A page whose host name was made to resolve to 127.0.0.1 (DNS rebinding) is told
by its `Host`; a page that sends requests across sites is told by its `Origin`.
"""

from __future__ import annotations

import ipaddress
import logging
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duly.api.problems import Problem

log = logging.getLogger("duly.api")

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Otherwise another site could still load an answer as a script or an image and learn from how that goes.
    "Cross-Origin-Resource-Policy": "same-origin",
}
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:\[\]@/]+)(?::[0-9]{1,5})?")


def is_loopback_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def is_loopback_host(header: str) -> bool:
    """Whether a `Host` header can only mean this machine."""
    match = _HOST.fullmatch(header.lower())
    if match is None:
        return False
    host = match[1].strip("[]").removesuffix(".")
    # The name and all below it are loopback by RFC 6761; no DNS server is asked for them.
    return host == "localhost" or host.endswith(".localhost") or is_loopback_address(host)


def _refusal(scope: Scope) -> Problem | None:
    headers = Headers(scope=scope)
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not is_loopback_host(hosts[0]):
        return Problem(421, "only loopback names are served here, such as localhost or 127.0.0.1")
    if scope["method"] in _SAFE_METHODS:
        return None
    origins = headers.getlist("origin")
    same_origin = f"{scope['scheme']}://{hosts[0]}".lower()
    if any(origin.lower() != same_origin for origin in origins):
        return Problem(403, "a request that changes something must not come from another site")
    if not origins and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return Problem(403, "a request that changes something must not come from another site")
    return None


class Guard:
    """Outermost but for Starlette's own: refuses strangers, adds the headers, and is the last to catch an error."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answering = False

        async def send_guarded(message: Message) -> None:
            nonlocal answering
            if message["type"] == "http.response.start":
                answering = True
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if (refusal := _refusal(scope)) is not None:
            await refusal.response()(scope, receive, send_guarded)
            return
        try:
            await self._app(scope, receive, send_guarded)
        except ClientDisconnect:
            return
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if answering:
                raise
            failed = Problem(500, "the request failed for a reason on this side; the server's log says which")
            await failed.response()(scope, receive, send_guarded)
