"""The dead man's switch: an address outside of the cluster is requested again and again, while all is well.

A service such as healthchecks.io, or an alert of one's own, speaks up when the requests stay away. So it also notices
what nothing inside can report: that no scheduler runs, that the machine is gone, or that the monitoring is. They stop

- with the node that leads the upkeep, until another one leads it;
- when shards have no leader, when a due job is late beyond a bound, when a run has waited that long and no worker
  lives, and when the store does not answer.

A finding is confirmed by a second look before it is logged, because shards have no leader for a moment whenever they
move. No ping is sent between the two.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from typing import Literal
from urllib.parse import urlsplit

from duly.errors import DulyError
from duly.maintenance.leader import LeaderService
from duly.masking import shown_ping_url
from duly.store import stores
from duly.store.pool import Pool
from duly.store.stores import Figures
from duly.version import VERSION

log = logging.getLogger("duly.deadman")

#: Longest time of one request, from the look-up of the host's name to the first line of the answer.
REQUEST_SECONDS = 10.0
# Pauses, unless the interval is shorter: before a finding is confirmed, and between looks and tries afterwards.
_CONFIRM_SECONDS = 2.0
_AGAIN_SECONDS = 5.0
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")


class Deadman(LeaderService):
    """Requests `url` every `interval` seconds.

    `late_seconds`: the bound for due jobs and, if no worker lives, for runs that wait.
    """

    # A request that hangs must not keep a node that stops from handing over its shards.
    patience = 0.2

    def __init__(self, pool: Pool, url: str, *, interval: float, late_seconds: float) -> None:
        super().__init__()
        self.interval = interval
        self._pool = pool
        self._url = url
        self._shown = shown_ping_url(url)
        self._late_seconds = late_seconds
        self._tls: ssl.SSLContext | None = None
        self._doubted = False
        # What was logged last.
        self._said: Literal["pings", "silent", "undelivered"] | None = None

    def lead(self, leading: bool) -> None:
        if not leading and self._said is not None:
            log.info("no more pings from this scheduler: it no longer leads the upkeep")
        self._said, self._doubted = None, False
        super().lead(leading)

    async def work(self) -> float | None:
        reason = await self._what_is_wrong()
        refused = await self._ping() if reason is None else None
        if not self.leading:
            return None
        if reason is not None:
            return self._be_silent(reason)
        self._doubted = False
        if refused is not None:
            if self._said != "undelivered":
                log.warning("%s did not take a ping: %s; trying again", self._shown, refused)
            self._said = "undelivered"
            return min(self.interval, _AGAIN_SECONDS)
        if self._said != "pings":
            log.info("all is well: pinging %s every %g s", self._shown, self.interval)
        self._said = "pings"
        return None

    def _be_silent(self, reason: str) -> float:
        if not self._doubted:
            self._doubted = True
            return min(self.interval, _CONFIRM_SECONDS)
        if self._said != "silent":
            log.warning("no more pings to %s: %s", self._shown, reason)
        self._said = "silent"
        return min(self.interval, _AGAIN_SECONDS)

    async def _what_is_wrong(self) -> str | None:
        try:
            return self._reason(await stores.figures(self._pool))
        except DulyError as error:
            return f"the store cannot be asked: {error}"

    def _reason(self, found: Figures) -> str | None:
        late, waiting = found.oldest_due_us / 1e6, found.oldest_waiting_us / 1e6
        if found.shards_unowned:
            return f"{found.shards_unowned} shards have no leader"
        if late > self._late_seconds:
            return f"a due job is {late:.0f} s late"
        if waiting > self._late_seconds and not found.live_nodes.get("worker"):
            return f"a run has waited for {waiting:.0f} s, and no worker lives"
        return None

    async def _ping(self) -> str | None:
        """Why it did not arrive, or None. Says nothing of the address, which may be secret."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                status = await self._request()
        except TimeoutError:
            return f"no answer within {REQUEST_SECONDS:g} s"
        except (OSError, EOFError, ValueError) as error:
            return f"{type(error).__name__}: {getattr(error, 'strerror', None) or 'the connection broke'}"
        return None if 200 <= status < 300 else f"it answered {status}"

    async def _request(self) -> int:
        """Sends a GET over a connection of its own; returns the status. Raises OSError, EOFError or ValueError."""
        parts = urlsplit(self._url)
        assert parts.hostname is not None
        if parts.scheme == "https" and self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)  # reads files
        port = parts.port or (443 if self._tls else 80)
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=self._tls)
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            writer.write(
                f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nUser-Agent: duly/{VERSION}\r\n"
                "Accept: */*\r\nConnection: close\r\n\r\n".encode("ascii")
            )
            await writer.drain()
            line = await reader.readline()
        finally:
            # Not close(): over TLS that waits for the other side.
            writer.transport.abort()
        if (status := _STATUS.match(line)) is None:
            raise ValueError("not an answer of HTTP")
        return int(status[1])
