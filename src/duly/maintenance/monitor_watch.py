"""Watches monitors: opens an incident when a ping is missing, has failed or has no end, and closes it after a success.

A look is one transaction: the monitors are locked, judged by what they say then, and their incidents opened and closed
together with the time of the next look. So a leader that dies leaves nothing half done, one that wakes up late judges
nothing by what it read long ago, and a ping that comes meanwhile is looked at afterwards.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from duly.maintenance.leader import LeaderService
from duly.model import StoredMonitor
from duly.store import incidents, monitors
from duly.store.incidents import Closing, Opening
from duly.store.monitors import Look
from duly.store.pool import Pool, Querier
from duly.timing.expecting import judge

log = logging.getLogger("duly.maintenance")

# Monitors per transaction.
BATCH = 200
# Until the next look: where nothing tells of a ping; and at a monitor that cannot be judged, or whose incident a
# maintenance window keeps from being opened.
_SILENT_SECONDS = 5.0
_AGAIN = timedelta(minutes=1)


class MonitorWatch(LeaderService):
    """Looks at the monitors whose time has come, and sleeps until the next one's."""

    interval = 30.0

    def __init__(self, pool: Pool, *, notified: bool) -> None:
        """`notified`: failures and recoveries are announced."""
        super().__init__()
        self._pool = pool
        if not notified:
            self.interval = _SILENT_SECONDS

    async def work(self) -> float | None:
        if not (self._pool.has_step(monitors.STEP) and self._pool.has_step(incidents.STEP)):
            return None
        async with self._pool.transaction() as transaction:
            found, now = await monitors.due(transaction, limit=BATCH)
            if now is not None:
                await self._look(transaction, found, now)
        if len(found) == BATCH:
            return 0.0
        coming = await monitors.seconds_to_next(self._pool)
        # A monitor that is due and was not found is locked: by a ping, for a moment.
        return None if coming is None else min(self.interval, max(coming, 0.05))

    async def _look(self, transaction: Querier, found: list[StoredMonitor], now: datetime) -> None:
        known: dict[tuple[str, str], dict[str, Closing]] = {}
        for one in await incidents.open_of_monitors(transaction, [(each.tenant, each.slug) for each in found]):
            closing = Closing(one.incident_id, "all is well again")
            known.setdefault((one.tenant, one.monitor or ""), {})[one.kind] = closing
        openings: list[Opening] = []
        closings: list[Closing] = []
        looks: list[Look] = []
        for monitor in found:
            is_open = known.get((monitor.tenant, monitor.slug), {})
            try:
                judged = judge(monitor, now)
            except Exception as error:  # noqa: BLE001 - the others are watched, whatever is wrong with this one
                log.warning("monitor %s of tenant %s cannot be watched: %s", monitor.slug, monitor.tenant, error)
                looks.append(Look(monitor.tenant, monitor.slug, now + _AGAIN, alarmed=True))
                continue
            missing = judged.wrong.keys() - is_open.keys()
            openings += [_opening(monitor, kind, judged.wrong[kind]) for kind in sorted(missing)]
            closings += [closing for kind, closing in is_open.items() if kind not in judged.wrong]
            times = [at for at in (judged.look_at, now + _AGAIN if missing else None) if at is not None]
            looks.append(Look(monitor.tenant, monitor.slug, min(times, default=None), bool(judged.wrong)))
        await incidents.open_many(transaction, openings)
        await incidents.close_many(transaction, closings)
        await monitors.looked(transaction, looks)


def _opening(monitor: StoredMonitor, kind: str, message: str) -> Opening:
    return Opening(
        tenant=monitor.tenant, name=monitor.slug, kind=kind, message=message, cause=kind, monitor=monitor.slug
    )
