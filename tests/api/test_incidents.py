"""Incidents and maintenance windows through the API and its client: of one tenant, and of nobody else's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from duly.client import AsyncClient
from duly.errors import InvalidInput, NotFound
from duly.operations import StoreOperations
from duly.store import incidents
from duly.store.incidents import Closing, Opening
from duly.store.pool import Pool


def opening(job_id: Any, kind: str = "late", tenant: str = "default") -> Opening:
    return Opening(tenant, "nightly", kind, "it waits", "late: queue default", job_id=job_id)


async def test_incidents_are_listed_and_acknowledged(
    pool: Pool, store_operations: StoreOperations, serving: Any
) -> None:
    async with serving(store_operations) as url, AsyncClient(url) as client:
        job = await client.submit("report", schedule="every 1h", alerts={"late_seconds": 5}, allow_unknown_handler=True)
        assert job.policy.alerts == {"late_seconds": 5}
        await incidents.open_many(pool, [opening(job.job_id), opening(uuid4()), opening(uuid4(), tenant="acme")])
        found = [one async for one in client.incidents()]
        assert len(found) == 2
        [own] = [one async for one in client.incidents(job_id=job.job_id)]
        assert (own.kind, own.message, own.is_open, own.job_id) == ("late", "it waits", True, job.job_id)
        page = await client.incidents_page(limit=1)
        rest = await client.incidents_page(limit=1, cursor=page.next_cursor)
        assert [*page.items, *rest.items] == found
        assert rest.next_cursor is None
        acked = await client.ack_incident(own.incident_id, by="ada")
        assert acked.acked_by == "ada"
        assert await client.ack_incident(own.incident_id, by="bob") == acked
        await incidents.close_many(pool, [Closing(own.incident_id, "it has started")])
        assert [one async for one in client.incidents(job_id=job.job_id)] == []
        [own] = [one async for one in client.incidents(job_id=job.job_id, only_open=False)]
        assert (own.closed_why, own.acked_by, own.is_open) == ("it has started", "ada", False)
        of_acme = await store_operations.for_tenant("acme").incidents.page()
        for unknown in (of_acme.items[0].incident_id, uuid4(), "x"):
            with pytest.raises(NotFound):
                await client.ack_incident(unknown)
        with pytest.raises(InvalidInput, match="cursor"):
            await client.incidents_page(cursor="zz")


async def test_maintenance_windows(store_operations: StoreOperations, serving: Any) -> None:
    now = datetime.now(UTC)
    async with serving(store_operations) as url, AsyncClient(url) as client:
        job = await client.submit("report", schedule="every 1h", allow_unknown_handler=True)
        whole = await client.add_maintenance_window(ends_at=now + timedelta(hours=1))
        later = await client.add_maintenance_window(
            starts_at=now + timedelta(hours=2), ends_at=now + timedelta(hours=3), job_id=job.job_id, reason="new disks"
        )
        assert (whole.job_id, whole.reason) == (None, "maintenance")
        assert (later.job_id, later.reason) == (job.job_id, "new disks")
        assert await client.maintenance_windows() == [whole, later]
        with pytest.raises(InvalidInput, match="ends_at"):
            await client.add_maintenance_window(ends_at=now - timedelta(hours=1))
        with pytest.raises(InvalidInput, match="ends_at"):
            await client.add_maintenance_window(starts_at=now + timedelta(hours=2), ends_at=now + timedelta(hours=1))
        with pytest.raises(NotFound):
            await client.add_maintenance_window(ends_at=now + timedelta(hours=1), job_id=uuid4())
        acme = store_operations.for_tenant("acme").windows
        assert await acme.list() == []
        with pytest.raises(NotFound):
            await acme.remove(str(whole.window_id))
        await client.remove_maintenance_window(whole.window_id)
        assert await client.maintenance_windows() == [later]
        with pytest.raises(NotFound):
            await client.remove_maintenance_window(whole.window_id)
