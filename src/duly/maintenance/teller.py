"""Sends the openings and closings of incidents, at least once, on every channel that is configured.

What is to be sent lies in the rows of the incidents themselves, in groups whose ids are stored before the first try. So
a scheduler that dies between opening and sending, or between sending and noting that, is followed by one that sends the
same group under the same id: a receiver can drop it. A channel that does not answer is tried again with growing pauses
and holds up neither the others nor the watcher.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from duly.config import Settings
from duly.maintenance.channels import Alertmanager, Channel, Email, Slack, Undelivered, Webhook
from duly.maintenance.leader import LeaderService
from duly.signing import parse_secrets
from duly.store import incidents, stores
from duly.store.pool import Pool

log = logging.getLogger("duly.incidents")

#: What happened longer ago is not sent any more: a channel that was away for a day does not bury its readers.
GIVE_UP_SECONDS = 86_400.0
# Of one message, from the look-up of the name to the answer.
_SEND_SECONDS = 20.0
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 300.0
_GROUPS = 100
_REPEAT_SECONDS = 60.0


@dataclass(slots=True)
class _State:
    """How a channel is doing. `retry_at`: by the monotonic clock."""

    failures: int = 0
    retry_at: float = 0.0
    repeat_at: float = 0.0


class Teller(LeaderService):
    """Sends what the channels have not taken yet. Without a channel it does nothing."""

    interval = 2.0
    # A receiver that hangs must not keep a node that stops from handing over its shards.
    patience = 0.2

    def __init__(self, pool: Pool, settings: Settings) -> None:
        super().__init__()
        self._pool = pool
        self._settings = settings
        self._channels: list[Channel] | None = None
        self._states: dict[str, _State] = {}

    async def work(self) -> float | None:
        if not self._pool.has_step(incidents.STEP):
            return None
        if self._channels is None:
            self._channels = await make_channels(self._settings, self._pool)
        if not self._channels:
            return 3600.0
        await incidents.group(
            self._pool, gather_seconds=self._settings.incident_gather_seconds, give_up_seconds=GIVE_UP_SECONDS
        )
        names = [channel.name for channel in self._channels]
        await asyncio.gather(*(self._serve(channel, names) for channel in self._channels))
        return None

    async def _serve(self, channel: Channel, names: Sequence[str]) -> None:
        state = self._states.setdefault(channel.name, _State())
        if time.monotonic() < state.retry_at:
            return
        groups = await incidents.unsent(
            self._pool, channel.name, limit=_GROUPS, shown=channel.shown, give_up_seconds=GIVE_UP_SECONDS
        )
        for group in groups:
            if not self.leading or self.stopping:
                return
            if not await self._delivered(channel, state, partial(channel.send, group, self._pool.clock.now())):
                return
            await incidents.sent(self._pool, group, channel.name, names)
        if channel.repeats and time.monotonic() >= state.repeat_at:
            state.repeat_at = time.monotonic() + _REPEAT_SECONDS
            await self._repeat(channel, state)

    async def _repeat(self, channel: Channel, state: _State) -> None:
        still = await incidents.open_now(self._pool, limit=channel.shown)
        if still:
            await self._delivered(channel, state, lambda: channel.repeat(still, self._pool.clock.now()))

    async def _delivered(self, channel: Channel, state: _State, send: Callable[[], None]) -> bool:
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await _in_thread(send)
        except (Undelivered, TimeoutError) as error:
            state.failures += 1
            state.retry_at = time.monotonic() + min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(state.failures - 1, 20))
            if state.failures in (1, 10) or state.failures % 100 == 0:
                why = error if isinstance(error, Undelivered) else f"no answer within {_SEND_SECONDS:g} s"
                log.warning("channel %s takes no incidents: %s; trying again", channel.name, why)
            return False
        if state.failures:
            log.info("channel %s takes incidents again", channel.name)
        state.failures = 0
        return True


async def make_channels(settings: Settings, pool: Pool) -> list[Channel]:
    """The channels that are configured."""
    channels: list[Channel] = []
    if settings.incident_webhook_url is not None:
        configured = settings.webhook_secret
        secrets = (await stores.webhook_secret(pool),) if configured is None else parse_secrets(configured)
        channels.append(Webhook(settings.incident_webhook_url, secrets))
    if settings.incident_slack_url is not None:
        channels.append(Slack(settings.incident_slack_url))
    if settings.incident_alertmanager_url is not None:
        channels.append(Alertmanager(settings.incident_alertmanager_url))
    if settings.smtp_url is not None and settings.incident_email.strip():
        to = [one.strip() for one in settings.incident_email.split(",")]
        channels.append(Email(settings.smtp_url, sender=settings.incident_email_from, to=to))
    return channels


async def _in_thread(call: Callable[[], None]) -> None:
    """Calls in a thread that a process which ends does not wait for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if not done.done():
            done.set_result(None) if error is None else done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            call()
        except Exception as raised:  # noqa: BLE001 - it is raised again where it is awaited
            error = raised
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, name="duly-incident", daemon=True).start()
    await done
