"""The middleware before every route: hosts and origins, authentication (by `access.py`), and the security headers.

While the store has no keys, Duly serves its own machine only, where pages in the user's browser can reach it too. Two
attacks of such pages are refused, whether a key is needed or not. A page whose host name was made to resolve to
127.0.0.1 (DNS rebinding) is recognised by its `Host`; a page that sends requests across sites is recognised by its
`Origin`. Neither header authenticates a caller: a proxy sends any value.

Where the store has keys, neither header is checked: a browser does not send a key by itself, so a foreign page has
none, and only the proxy knows the names under which a server is reached. The setting `api_hosts` can restrict them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duly.api.access import Access
from duly.api.binding import is_loopback_address
from duly.api.problems import Problem
from duly.errors import DulyError
from duly.masking import HIDDEN

log = logging.getLogger("duly.api")

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Otherwise another site could load an answer as a script or an image and learn from whether that succeeds.
    "Cross-Origin-Resource-Policy": "same-origin",
}
_SECURITY_HEADERS = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
# Paths that need no key and are the same for every caller: probes, pages, the description of the API.
_PUBLIC = frozenset({"/", "/docs", "/healthz", "/livez", "/readyz", "/startupz", "/api/v1/openapi.json"})
# And those that carry their own authority: a monitor's ping address.
#: Below it are the ping addresses of monitors.
PINGS = "/ping/"
_PUBLIC_FOLDERS = ("/static/", PINGS)
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:\[\]@/]+)(?::[0-9]{1,5})?")


def is_loopback_host(header: str) -> bool:
    """Whether a `Host` header can only mean this machine."""
    match = _HOST.fullmatch(header.lower())
    if match is None:
        return False
    host = match[1].strip("[]").removesuffix(".")
    # RFC 6761: localhost and all names below it are loopback; no DNS server is asked for them.
    return host == "localhost" or host.endswith(".localhost") or is_loopback_address(host)


def _refusal(scope: Scope, headers: Headers) -> Problem | None:
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not is_loopback_host(hosts[0]):
        return Problem(421, "only loopback names are served here, such as localhost or 127.0.0.1")
    if scope["method"] in _SAFE_METHODS:
        return None
    origins = headers.getlist("origin")
    same_origin = f"{scope['scheme']}://{hosts[0]}".lower()
    if any(origin.lower() != same_origin for origin in origins):
        return Problem(403, "a request that changes something must not come from another site", kind="cross-site")
    if not origins and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return Problem(403, "a request that changes something must not come from another site", kind="cross-site")
    return None


def _logged(path: str) -> str:
    """A path for the log: a monitor's ping address is a secret."""
    return f"{PINGS}{HIDDEN}" if path.startswith(PINGS) else path


def _is_named(headers: Headers, names: frozenset[str]) -> bool:
    hosts = headers.getlist("host")
    match = _HOST.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
    return match is not None and (match[1] in names or is_loopback_host(hosts[0]))


def _address(scope: Scope) -> str | None:
    client = scope.get("client")
    return str(client[0]) if client else None


class RequestGuard:
    """The outermost middleware but for Starlette's own: authenticates, adds headers, and catches every other error."""

    def __init__(self, app: ASGIApp, access: Access, *, hosts: Collection[str] = ()) -> None:
        self._app = app
        self._access = access
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answering = False
        # HEAD works for every GET route: the route answers as to a GET, and the body is dropped here.
        headless = scope["method"] == "HEAD"
        if headless:
            scope = {**scope, "method": "GET"}

        async def send_guarded(message: Message) -> None:
            nonlocal answering
            if headless and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            if message["type"] == "http.response.start":
                answering = True
                message["headers"] = [*message["headers"], *_SECURITY_HEADERS]
                MutableHeaders(scope=message).setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            try:
                await self._let_in(scope)
            except Problem as refusal:
                await refusal.response()(scope, receive, send_guarded)
                return
            except DulyError as error:
                await Problem.of(error).response()(scope, receive, send_guarded)
                return
            await self._app(scope, receive, send_guarded)
        except ClientDisconnect:
            return
        except Exception:
            log.exception("%s %s failed", scope["method"], _logged(scope["path"]))
            if answering:
                raise
            failed = Problem(500, "the request failed for a reason on this side; the server's log says which")
            await failed.response()(scope, receive, send_guarded)

    async def _let_in(self, scope: Scope) -> None:
        """Raise a `Problem` for a caller that is refused; else put the caller and its operations into the scope."""
        headers = Headers(scope=scope)
        path = scope["path"]
        private = path not in _PUBLIC and not path.startswith(_PUBLIC_FOLDERS)
        if not self._access.known_to_have_keys:
            # The store is asked only for a caller that would be refused: probes and pages must work without it.
            refusal = _refusal(scope, headers)
            if refusal is not None and not await self._access.has_keys():
                raise refusal
        if self._access.known_to_have_keys and self._hosts and not _is_named(headers, self._hosts):
            raise Problem(421, "this name is not served here; the setting api_hosts says which are")
        if private:
            scope["duly.principal"], scope["duly.operations"] = await self._access.admit(headers, _address(scope))
