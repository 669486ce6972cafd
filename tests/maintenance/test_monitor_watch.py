"""The watch of monitors: an incident is opened once and closed once, whoever looks, however often, and whoever dies."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duly.maintenance.monitor_watch import BATCH, MonitorWatch
from duly.model import MonitorDefinition, MonitorState
from duly.operations import Operations, StoreOperations
from duly.store import incidents, monitors
from duly.store.pool import Pool
from harness.processes import Spawn
from harness.waiting import eventually

START = datetime(2030, 1, 10, 12, tzinfo=UTC)


class Stage:
    """A store whose clock stands, one tenant's monitors, and a watch that looks when it is told to."""

    def __init__(self, pool: Pool, operations: Operations) -> None:
        self.pool = pool
        self.monitors = operations.monitors
        self.watch = MonitorWatch(pool, notified=True)
        self.watch.lead(True)

    async def at(self, moment: datetime) -> None:
        await self.pool.query("update duly.clock set frozen_at = $1", moment)
        await self.pool.measure_clock()

    async def look(self) -> float | None:
        return await self.watch.run_once()

    async def set(self, slug: str = "nightly", schedule: str = "0 3 * * *", **fields: Any) -> None:
        await self.monitors.set(slug, MonitorDefinition(schedule, **fields))

    async def state(self, slug: str = "nightly") -> MonitorState:
        return (await self.monitors.get(slug)).state

    async def incidents(self) -> list[tuple[str, str, bool]]:
        rows = await self.pool.query(
            "select monitor, kind, closed_at is null as open from duly.incidents order by opened_at, monitor, kind"
        )
        return [(row["monitor"], row["kind"], row["open"]) for row in rows]


@pytest.fixture
async def stage(pool: Pool, operations: Operations) -> Stage:
    stage = Stage(pool, operations)
    await stage.at(START)
    return stage


async def test_a_missing_ping_opens_one_incident_and_the_next_success_closes_it(stage: Stage) -> None:
    await stage.set(grace_seconds=600)
    await stage.look()
    assert await stage.state() == "new"
    await stage.at(datetime(2030, 1, 11, 3, 9, tzinfo=UTC))
    await stage.look()
    assert (await stage.state(), await stage.incidents()) == ("late", [])
    await stage.at(datetime(2030, 1, 11, 3, 10, tzinfo=UTC))
    for _ in range(3):
        await stage.look()
    assert (await stage.state(), await stage.incidents()) == ("down", [("nightly", "no_ping", True)])
    await stage.at(datetime(2030, 1, 11, 3, 20, tzinfo=UTC))
    await stage.monitors.ping("nightly")
    for _ in range(3):
        await stage.look()
    assert (await stage.state(), await stage.incidents()) == ("up", [("nightly", "no_ping", False)])
    await stage.at(datetime(2030, 1, 12, 3, 11, tzinfo=UTC))
    await stage.look()
    assert [one for one in await stage.incidents() if one[2]] == [("nightly", "no_ping", True)]


async def test_an_ordinary_ping_calls_for_no_look_and_a_failure_and_a_recovery_do(stage: Stage) -> None:
    await stage.set()
    await stage.look()

    async def due() -> int:
        async with stage.pool.transaction() as transaction:
            return len((await monitors.due(transaction, limit=10))[0])

    await stage.monitors.ping("nightly")
    assert await due() == 0
    await stage.monitors.ping("nightly", "start")
    assert await due() == 0
    await stage.monitors.ping("nightly", "failure", exit_status=2, note="no space")
    assert await due() == 1
    await stage.look()
    assert await stage.incidents() == [("nightly", "ping_failed", True)]
    assert "with exit status 2: no space" in str((await stage.monitors.get("nightly")).why)
    assert await due() == 0
    await stage.monitors.ping("nightly", "failure")
    await stage.look()
    await stage.monitors.ping("nightly")
    assert await due() == 1
    await stage.look()
    assert await stage.incidents() == [("nightly", "ping_failed", False)]
    assert await due() == 0


async def test_starts_are_paired_by_their_ids_and_one_without_an_end_is_an_overrun(stage: Stage) -> None:
    await stage.set(max_runtime_seconds=60)
    for rid in ("a", "b"):
        await stage.monitors.ping("nightly", "start", rid=rid)
    await stage.look()
    await stage.at(START + timedelta(seconds=30))
    await stage.monitors.ping("nightly", rid="a")
    found = await stage.monitors.get("nightly")
    assert (found.running, found.pings[0].rid, found.pings[0].seconds) == (1, "a", 30)
    await stage.look()
    await stage.at(START + timedelta(seconds=60))
    await stage.look()
    assert await stage.incidents() == [("nightly", "ping_overrun", True)]
    # The next success closes it: what hung will never end.
    await stage.monitors.ping("nightly", rid="c")
    await stage.look()
    assert await stage.incidents() == [("nightly", "ping_overrun", False)]
    assert (await stage.monitors.get("nightly")).running == 0


async def test_what_a_monitor_keeps_is_bounded(stage: Stage) -> None:
    await stage.set(max_runtime_seconds=60)
    for number in range(monitors.MAX_STARTS + 5):
        await stage.monitors.ping("nightly", "start", rid=f"r{number}", note="x" * 10_000)
    found = await stage.monitors.get("nightly")
    assert (found.running, len(found.pings)) == (monitors.MAX_STARTS, monitors.MAX_PINGS)
    assert all(len(ping.note or "") <= 500 for ping in found.pings)


async def test_a_change_of_the_schedule_and_a_removal_close_what_was_open(stage: Stage) -> None:
    for slug in ("changed", "removed"):
        await stage.set(slug, "every 1m", grace_seconds=0)
    await stage.at(START + timedelta(hours=1))
    await stage.look()
    assert len([one for one in await stage.incidents() if one[2]]) == 2
    await stage.set("changed", "@daily")
    await stage.look()
    await stage.monitors.remove("removed")
    assert not [one for one in await stage.incidents() if one[2]]
    await stage.look()
    assert len(await stage.incidents()) == 2


async def test_many_are_looked_at_in_batches_by_two_leaders_at_once(
    stage: Stage, store_operations: StoreOperations
) -> None:
    count = BATCH + 50
    others = store_operations.for_tenant("acme").monitors
    for number in range(count):
        which = others if number % 2 else stage.monitors
        await which.set(f"m{number}", MonitorDefinition("every 1m", grace_seconds=0))
    await stage.at(START + timedelta(hours=1))
    second = MonitorWatch(stage.pool, notified=True)
    second.lead(True)
    await asyncio.gather(*(watch.run_once() for watch in (stage.watch, second, stage.watch, second)))
    await asyncio.gather(stage.look(), second.run_once())
    found = await stage.incidents()
    assert len(found) == len({slug for slug, _, _ in found}) == count


async def test_a_leader_that_dies_between_incident_and_note_has_done_neither(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.set(schedule="every 1m", grace_seconds=0)
    await stage.at(START + timedelta(hours=1))

    async def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(monitors, "looked", die)
        with pytest.raises(KeyboardInterrupt):
            await stage.look()
    assert await stage.incidents() == []
    await stage.look()
    assert await stage.incidents() == [("nightly", "no_ping", True)]


async def test_a_monitor_that_cannot_be_judged_does_not_hold_up_the_others(stage: Stage) -> None:
    for slug in ("bad", "good"):
        await stage.set(slug, "every 1m", grace_seconds=0)
    await stage.pool.query("update duly.monitors set timezone = 'Europe/Atlantis' where slug = 'bad'")
    await stage.at(START + timedelta(hours=1))
    await stage.look()
    assert await stage.incidents() == [("good", "no_ping", True)]
    assert await stage.state("bad") == "down"


async def test_a_maintenance_window_keeps_an_incident_from_being_opened_until_it_ends(stage: Stage) -> None:
    await stage.set(schedule="every 1m", grace_seconds=0)
    await stage.pool.query(
        "insert into duly.maintenance_windows (window_id, tenant, starts_at, ends_at, reason, created_at) "
        "values (gen_random_uuid(), 'default', $1, $2, 'move', $1)",
        START, START + timedelta(hours=1),
    )  # fmt: skip
    await stage.at(START + timedelta(minutes=30))
    await stage.look()
    assert await stage.incidents() == []
    await stage.at(START + timedelta(hours=1, minutes=1))
    await stage.look()
    assert await stage.incidents() == [("nightly", "no_ping", True)]


async def test_a_store_without_the_step_is_left_alone(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage.pool, "has_step", lambda number: number != monitors.STEP)
    assert await stage.look() is None
    assert (await stage.monitors.page()).items == []
    assert incidents.STEP < monitors.STEP


async def test_each_incident_is_opened_and_closed_once_while_schedulers_are_killed(
    pool: Pool, operations: Operations, spawn: Spawn
) -> None:
    """Real schedulers, killed with SIGKILL as soon as a part of the incidents of a round is there."""
    slugs = [f"m{number}" for number in range(BATCH + BATCH // 2)]
    for slug in slugs:
        await operations.monitors.set(slug, MonitorDefinition("@yearly"))
    schedulers = [spawn("scheduler") for _ in range(2)]

    async def reached(wanted: int, where: str = "true") -> None:
        async def is_reached() -> bool:
            rows = await pool.query(f"select count(*) as n from duly.incidents where {where}")
            return bool(rows[0]["n"] >= wanted)

        await eventually(is_reached)

    async def pinged(event: Any) -> None:
        for slug in slugs:
            await operations.monitors.ping(slug, event)

    async def leader_killed() -> None:
        """Kills whichever scheduler leads shard 0, and starts another one."""
        rows = await pool.query(
            "select n.name from duly.shards s join duly.nodes n on n.node_id = s.node_id where s.shard = 0"
        )
        pids = {int(row["name"].rpartition(":")[2]) for row in rows}
        for process in [one for one in schedulers if one.pid in pids]:
            process.send_signal(signal.SIGKILL)
            process.wait()
            schedulers.remove(process)
            schedulers.append(spawn("scheduler"))

    pinging = asyncio.create_task(pinged("failure"))
    await reached(1)
    await leader_killed()
    await pinging
    await reached(len(slugs), "closed_at is null")
    pinging = asyncio.create_task(pinged("success"))
    await reached(1, "closed_at is not null")
    await leader_killed()
    await pinging
    await reached(len(slugs), "closed_at is not null")
    found = await pool.query("select monitor, closed_at is null as open from duly.incidents")
    assert Counter(row["monitor"] for row in found) == dict.fromkeys(slugs, 1)
    assert not any(row["open"] for row in found)
