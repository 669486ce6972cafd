"""The API's requests: how many there were and how long they took, by route, method and class of the answer's status.

A route is the template that served the request (`/api/v1/jobs/{job_id}`), not its path, and a method is one that HTTP
knows: callers cannot make time series. What no route serves counts as `(none)`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duly.exposition import histogram
from duly.figures import REQUEST, REQUEST_LABELS, Histogram

if TYPE_CHECKING:
    from prometheus_client import Metric

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_NONE = "(none)"


class Requests:
    """The requests since the start of this process."""

    def __init__(self) -> None:
        #: Paths of routes without parameters: those of pages, which leave no trace in the scope.
        self.pages: frozenset[str] = frozenset()
        self._by_labels: dict[tuple[str, str, str], Histogram] = {}

    def note(self, route: str, method: str, status: int, seconds: float) -> None:
        labels = route, method if method in _METHODS else _NONE, f"{status // 100}xx"
        found = self._by_labels.get(labels)
        if found is None:
            found = self._by_labels[labels] = Histogram(REQUEST.buckets)
        found.observe([seconds * 1e6])

    def families(self) -> Iterable[Metric]:
        yield histogram(
            REQUEST,
            {values: (list(one.counts), one.sum_us / 1e6) for values, one in self._by_labels.items()},
            labels=REQUEST_LABELS,
        )


class CountedRequests:
    """Counts every request to the app. The event stream of a page counts when it ends."""

    def __init__(self, app: ASGIApp, requests: Requests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            route = getattr(scope.get("route"), "path", None)
            if route is None:
                route = scope["path"] if scope["path"] in self._requests.pages else _NONE
            self._requests.note(route, scope["method"], status, time.perf_counter() - began)
