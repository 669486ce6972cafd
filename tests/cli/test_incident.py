"""`duly submit --alert`, `duly incident` and `duly maintenance`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID, uuid4

from duly.model import os_user
from duly.store import incidents
from duly.store.incidents import Opening
from duly.store.pool import Pool
from harness.commands import Ended

Run = Callable[..., Ended]
SUBMIT = ("submit", "report", "--schedule", "every 1h", "--name", "nightly", "--allow-unknown-handler", "--json")


def test_alerts_are_given_with_short_names(duly: Run) -> None:
    given = ("late=60", "failures=3", "not-finished-by=06:30", "overrun_seconds=90", "no-success-for=86400")
    job = duly(*SUBMIT, *(part for one in given for part in ("--alert", one))).document
    assert job["alerts"] == {
        "late_seconds": 60,
        "overrun_seconds": 90,
        "not_finished_by": "06:30",
        "failures_in_row": 3,
        "no_success_for": 86400,
    }
    assert "late_seconds" in duly("job", "show", "nightly").out
    for wrong, named in (("soon=1", "alert"), ("late", "alert"), ("late=soon", "alerts.late_seconds")):
        refused = duly(*SUBMIT, "--alert", wrong)
        assert (refused.code, named in refused.err) == (2, True)


def test_incidents_are_listed_and_acknowledged(duly: Run, database_url: str) -> None:
    async def open_one(job_id: UUID) -> None:
        pool = await Pool.connect(database_url)
        await incidents.open_many(pool, [Opening("default", "nightly", "late", "it waits", "late", job_id=job_id)])
        await pool.close()

    assert "nothing is wrong" in duly("incident", "list").err
    job_id = UUID(duly(*SUBMIT).document["job_id"])
    asyncio.run(open_one(job_id))
    [line] = duly("incident", "list", "--job", "nightly", "--json").lines
    assert (line["kind"], line["name"], line["closed_at"]) == ("late", "nightly", None)
    assert "it waits" in duly("incident", "list").out
    assert duly("incident", "ack", line["incident_id"], "--json").document["acked_by"] == os_user()
    assert f"acknowledged by {os_user()}" in duly("incident", "ack", line["incident_id"], "--by", "ada").out
    assert duly("incident", "ack", str(uuid4())).code == 4
    assert duly("--tenant", "acme", "incident", "list", "--all", "--json").lines == []


def test_maintenance_windows(duly: Run) -> None:
    duly(*SUBMIT)
    assert "there is no maintenance window" in duly("maintenance", "list").err
    window = duly("maintenance", "add", "--until", "2099-01-01", "--reason", "disks", "--json").document
    assert duly("maintenance", "add", "--job", "nightly", "--from", "2098-01-01", "--until", "2099-01-01").code == 0
    lines = duly("maintenance", "list", "--json").lines
    assert [line["reason"] for line in lines] == ["disks", "maintenance"]
    assert "disks" in duly("maintenance", "list").out
    assert duly("maintenance", "remove", window["window_id"]).code == 0
    assert len(duly("maintenance", "list", "--json").lines) == 1
    for wrong in (("--until", "2020-01-01"), ("--until", "soon"), ("--until", "2099-01-01", "--from", "2099-06-01")):
        assert duly("maintenance", "add", *wrong).code == 2
    assert duly("maintenance", "add", "--until", "2099-01-01", "--job", "nobody").code == 4
    assert duly("maintenance", "remove", "x").code == 4
