"""A bad row hurts only itself.

Other programs that write to the tables can leave anything there that the columns' types allow. Wherever Duly processes
many rows at once, each such row stands beside innocent ones: the innocent ones go on, and the bad one is shown with its
reason.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest

from duly import Context, Snooze
from duly.api.server import create_app
from duly.config import Settings
from duly.errors import DataRefused, DulyError, StoreUnavailable
from duly.maintenance.guardian import Guardian
from duly.maintenance.rescuer import Rescuer
from duly.maintenance.sql_submits import SqlSubmits
from duly.maintenance.unparker import Unparker
from duly.model import DULY, Buried, DeadLetterFilter, Policy, Requeued
from duly.node import running_scheduler
from duly.operations import Operations, StoreOperations
from duly.operations.sql_submits import plan_sql_submit
from duly.scheduler.firer import Firer
from duly.store import dead_letters, maintenance, runs
from duly.store.dead_letters import Batch
from duly.store.jobs import NewJob
from duly.store.maintenance import Suspect
from duly.store.pool import Pool
from duly.worker.handler.errors import error_text
from harness.scheduler import SECOND, START, FrozenScheduler, spread
from harness.store import count, due_job, new_job, put, succeeded, take
from harness.waiting import eventually
from harness.worker import Workbench, wait_idle

DIGITS, DEEP, HUGE = "9" * 5_000, "[" * 3_000 + "]" * 3_000, "8" * 400 + ".5"

# Column, type, and the value that spoils it.
SPOILT: list[tuple[str, str, str]] = [
    *[
        ("policy", "jsonb", policy)
        for policy in (
            "[1]", '"x"', "7", "null", DIGITS, DEEP, '{"max_retries": "three"}', '{"max_retries": 3.0}',
            '{"max_retries": 1e400}', '{"max_retries": -5}', '{"max_retries": true}', '{"max_retries": [1]}',
            '{"max_retries": {}}', '{"max_retries": null}', '{"max_retries": 1.5}', '{"max_queued": "x"}',
            '{"max_queued": 99999999999999}', '{"max_queued": 2.5, "overlap": "queue"}', '{"overlap": 7}',
            '{"overlap": "perhaps"}', '{"overlap": ["parallel"]}', '{"timeout_seconds": "x"}',
            '{"timeout_seconds": null}', '{"timeout_seconds": -1}', '{"timeout_seconds": 1e300}',
            '{"jitter_seconds": 1e9}', '{"jitter_seconds": "x"}', '{"idempotency_key_template": 5}',
            '{"idempotency_key_template": "{{nonsense}}"}', '{"idempotency_key_template": ""}',
            '{"retry_delay_seconds": "x"}', '{"retry_backoff": "sometimes"}', '{"missed_window": {}}',
            '{"catch_up_window_seconds": "x"}', '{"dst_gap": 1}', '{"dst_fold": null}', '{"a later version": 1}',
            '{"secret_fields": "x"}', '{"secret_fields": [1]}', '{"secret_fields": ["..", "", "a"]}',
            '{"max_retries": ' + DIGITS + "}", '{"timeout_seconds": ' + HUGE + "}",
        )
    ],
    *[("target", "jsonb", target) for target in (DIGITS, DEEP, HUGE, "[1]", '"x"', "{}", '{"type": "telnet"}', "null")],
    *[("payload", "jsonb", payload) for payload in (DIGITS, DEEP, HUGE, "[1]", '"x"', "null", f'{{"a": {DIGITS}}}')],
    *[("labels", "jsonb", labels) for labels in (DIGITS, DEEP, "[1]", '"x"', '{"a": 1}', '{"a": {"b": []}}', "null")],
    *[
        ("schedule", "text", schedule)
        for schedule in ("", "nonsense", "\x01", "x" * 30_000, "77 * * * *", "FREQ=NEVER", "now", "every 0s", "\u202e")
    ],
    *[("timezone", "text", zone) for zone in ("", "Mars/Olympus", "../../etc/passwd", "x" * 5_000, "Factory", "\u200b")
    ],
    *[("queue", "text", queue) for queue in ("", "\x01", "q" * 9_000, "\u202e")],
    *[("name", "text", name) for name in ("", "\x01\x1b[2J", "n" * 100_000, "\u202e\u200b")],
    *[("handler", "text", handler) for handler in ("", "\x01", "h" * 100_000, "nobody has it")],
    *[("max_runs", "integer", number) for number in ("0", "-1", "-2147483648", "2147483647")],
    *[("run_count", "integer", number) for number in ("-1", "-2147483648", "2147483647")],
    *[("version", "integer", number) for number in ("-1", "2147483646")],
    *[("extra_at", "timestamptz", at) for at in ("infinity", "-infinity", "20000-01-01", "4000-01-01 BC")],
    *[("start_at", "timestamptz", at) for at in ("infinity", "20000-01-01", "9999-12-31", "1900-01-01")],
    *[("end_at", "timestamptz", at) for at in ("-infinity", "20000-01-01", "9999-12-31", "1900-01-01")],
    *[("created_at", "timestamptz", at) for at in ("infinity", "20000-01-01", "4000-01-01 BC", "1900-01-01")],
    *[("updated_at", "timestamptz", at) for at in ("infinity", "20000-01-01", "4000-01-01 BC", "9999-12-31")],
]  # fmt: skip


class Stand:
    """Innocent jobs, and one job for each way to spoil one that the database itself does not refuse."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.innocent: list[UUID] = []
        self.bad: dict[UUID, tuple[str, str]] = {}

    async def make(self, jobs: Sequence[NewJob], *, innocent: int = 3) -> None:
        """Stores the jobs and spoils all but the innocent ones, which stand at both ends and in the middle."""
        assert len(jobs) == len(SPOILT) + innocent
        await put(self.pool, *jobs)
        await self.spoil([job.job_id for job in jobs], innocent=innocent)

    async def spoil(self, job_ids: Sequence[UUID], *, innocent: int = 3) -> None:
        left = list(job_ids)
        self.innocent = [left.pop(0), left.pop(len(left) // 2), left.pop()][:innocent]
        for (column, kind, value), job_id in zip(SPOILT, left, strict=False):
            try:
                await self.pool.query(
                    f"update duly.jobs set {column} = $2::text::{kind} where job_id = $1", job_id, value
                )
                self.bad[job_id] = (column, value[:60])
            except (asyncpg.PostgresError, DulyError):
                # The database itself refuses the value, so it cannot occur.
                await self.pool.query("delete from duly.jobs where job_id = $1", job_id)
                await self.pool.query("delete from duly.runs where job_id = $1", job_id)
                await self.pool.query("delete from duly.sql_submits where job_id = $1", job_id)
                await self.pool.query("delete from duly.parked where job_id = $1", job_id)
        assert len(self.bad) > 80

    async def rows(self) -> dict[UUID, Any]:
        return {row["job_id"]: row for row in await self.pool.query("select * from duly.jobs")}


SIZE = len(SPOILT) + 3


@pytest.fixture
def stand(pool: Pool) -> Stand:
    return Stand(pool)


async def test_lists_and_looks_show_every_job_and_say_what_cannot_be_read(
    stand: Stand, pool: Pool, operations: Operations, store_operations: StoreOperations
) -> None:
    await stand.make([due_job(pool, pool.clock.now() + timedelta(hours=23)) for _ in range(SIZE)])
    listed = {job.job_id: job for job in (await operations.jobs.page(limit=1000)).items}
    assert listed.keys() == {*stand.innocent, *stand.bad}
    for job_id, (column, value) in stand.bad.items():
        job = listed[job_id]
        if column in ("policy", "target", "payload", "labels") and value[:60] == DIGITS[:60]:
            assert job.unreadable is not None
            assert "cannot be read" in (job.status_reason or ""), (column, value)
        for look in (
            operations.jobs.get,
            operations.explain.occurrence,
            operations.runs.page,
            operations.jobs.upcoming,
        ):
            with suppress(DulyError):  # an error of Duly's own, about this job
                await look(str(job_id))
    for job_id in stand.innocent:
        assert listed[job_id].unreadable is None
        assert len(await operations.jobs.upcoming(str(job_id))) > 1
    await operations.forecast(minutes=1440)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(store_operations)), base_url="http://127.0.0.1"
    ) as api:
        answer = await api.get("/api/v1/jobs", params={"limit": 1000})
        assert answer.status_code == 200, answer.text[:300]
        assert {item["job_id"] for item in answer.json()["items"]} == {str(job_id) for job_id in listed}
        for job_id in listed:
            for path in ("", "/runs", "/occurrences", "/explain"):
                answer = await api.get(f"/api/v1/jobs/{job_id}{path}")
                assert answer.status_code < 500, (stand.bad.get(job_id), path, answer.text[:300])


async def test_what_came_in_through_sql_is_planned_beside_what_cannot_be(
    stand: Stand, pool: Pool, settings: Settings
) -> None:
    made = await pool.query(
        "select duly.submit('t', schedule => 'every 1h', allow_unknown_handler => true) as job_id "
        "from generate_series(1, $1)", SIZE,
    )  # fmt: skip
    await stand.spoil([row["job_id"] for row in made])
    service = SqlSubmits(pool, plan=lambda job: plan_sql_submit(job, settings), notified=True)
    service.lead(True)
    while await service.run_once() is not None:
        pass
    assert await count(pool, "sql_submits") == 0
    rows = await stand.rows()
    assert {rows[job_id]["status"] for job_id in stand.innocent} == {"active"}
    for job_id, spoilt in stand.bad.items():
        row = rows[job_id]
        assert row["status"] == "active" or "planned" in row["status_reason"], (spoilt, row["status_reason"])
        assert row["status_reason"] is None or "not planned by a scheduler yet" not in row["status_reason"], spoilt
        if spoilt[1] == DIGITS[:60]:
            assert "cannot be read" in (row["status_reason"] or "")


async def test_what_is_due_fires_beside_what_cannot_be_planned(stand: Stand, pool: Pool, settings: Settings) -> None:
    due = pool.clock.now() + timedelta(seconds=2)
    jobs = [due_job(pool, due) for _ in range(SIZE)]
    await stand.make(jobs)
    async with running_scheduler(pool, settings):

        async def fired() -> bool:
            return await count(pool, "runs", "job_id = any ($1::uuid[])", stand.innocent) == len(stand.innocent)

        await eventually(fired)

        async def settled() -> bool:
            return await count(pool, "jobs", "status = 'active' and next_run_at <= $1", due) == 0

        await eventually(settled)
    rows = await stand.rows()
    for job_id, spoilt in stand.bad.items():
        row = rows[job_id]
        ran = await count(pool, "runs", "job_id = $1", job_id) + await count(pool, "history", "job_id = $1", job_id)
        assert ran or row["status_reason"] is not None or row["status"] == "ended", spoilt
        if spoilt[0] == "policy" and spoilt[1] in (DIGITS[:60], DEEP[:60], "[1]", '{"max_retries": "three"}'):
            assert row["status"] == "paused"
            assert row["status_reason"].startswith("cannot be planned")


async def test_the_parked_go_on_beside_what_cannot(stand: Stand, pool: Pool) -> None:
    jobs = [due_job(pool, pool.clock.now()) for _ in range(SIZE)]
    await stand.make(jobs)
    await pool.query(
        "update duly.jobs set status = 'paused', status_reason = 'cannot be planned: x', next_run_at = null"
    )
    await pool.query("insert into duly.parked select job_id, version, duly.now() from duly.jobs")
    unparker = Unparker(pool)
    unparker.lead(True)
    await unparker.run_once()
    rows = await stand.rows()
    assert {rows[job_id]["status"] for job_id in stand.innocent} == {"active"}
    for job_id, spoilt in stand.bad.items():
        assert rows[job_id]["status"] != "paused" or rows[job_id]["status_reason"] == "cannot be planned: x", spoilt


async def test_the_guardian_repairs_beside_what_cannot_be(stand: Stand, pool: Pool) -> None:
    jobs = [due_job(pool, pool.clock.now()) for _ in range(SIZE)]
    await stand.make(jobs)
    await pool.query("update duly.jobs set next_run_at = null, updated_at = duly.now() - interval '1 hour'")
    guardian = Guardian(pool, grace_seconds=0)
    guardian.lead(True)
    for _ in range(3):
        await guardian.run_once()
    rows = await stand.rows()
    assert all(rows[job_id]["next_run_at"] is not None for job_id in stand.innocent)
    for job_id, spoilt in stand.bad.items():
        row = rows[job_id]
        assert row["next_run_at"] is not None or row["status"] != "active", spoilt
        assert row["status"] != "paused" or row["status_reason"].startswith("cannot be planned"), spoilt


async def test_late_runs_are_released_beside_what_cannot_be(stand: Stand, pool: Pool, settings: Settings) -> None:
    first = pool.clock.now() - timedelta(hours=3)
    await stand.make([due_job(pool, pool.clock.now() + timedelta(hours=1)) for _ in range(SIZE)])
    await pool.query(
        "insert into duly.catch_ups (job_id, first_at, last_at, served_at, count, shard, epoch) "
        "select job_id, $1::timestamptz, $1::timestamptz + interval '2 hours', duly.now(), 3, shard, 1 from duly.jobs",
        first,
    )
    async with running_scheduler(pool, settings):

        async def released() -> bool:
            return await count(pool, "catch_ups", "job_id = any ($1::uuid[])", stand.innocent) == 0

        await eventually(released)
    assert await count(pool, "runs", "job_id = any ($1::uuid[])", stand.innocent) >= len(stand.innocent)


async def test_a_worker_ends_each_run_by_itself(
    stand: Stand, pool: Pool, settings: Settings, operations: Operations
) -> None:
    await stand.make([new_job(pool, handler="noop") for _ in range(SIZE)])
    bench = Workbench(pool, settings, operations)

    @bench.app.task("noop")
    async def noop(**_anything: Any) -> None:
        pass

    async with bench.working(concurrency=200):
        # Runs with a target wait for a worker that calls it; all other runs end, or wait for their next attempt.
        async def ended() -> bool:
            called = "job_id not in (select job_id from duly.jobs where target is not null)"
            return await count(pool, "runs", f"state = 'queued' and queue = 'default' and {called}") == 0

        await eventually(ended, seconds=30)
    for job_id in stand.innocent:
        assert (await operations.runs.page(str(job_id))).items[0].status == "succeeded"
    for job_id, spoilt in stand.bad.items():
        if await count(pool, "history", "job_id = $1 and status = 'dead'", job_id):
            letter = (await operations.dead_letters.page(DeadLetterFilter(job_id=str(job_id)))).items[0]
            assert letter.error.message, spoilt
            if spoilt == ("policy", '{"max_retries": "three"}'):
                assert "max_retries" in letter.error.message


async def test_a_lost_workers_runs_come_back_beside_what_cannot(stand: Stand, pool: Pool) -> None:
    await stand.make([new_job(pool) for _ in range(SIZE)])
    held = {run.job_id for run in (await take(pool, limit=1000, lease=-1)).runs}
    assert held >= {*stand.innocent, *(job_id for job_id, spoilt in stand.bad.items() if spoilt[0] != "queue")}
    rescuer = Rescuer(pool)
    rescuer.lead(True)
    await rescuer.run_once()
    assert await count(pool, "claims") == 0
    assert await count(pool, "runs", "job_id = any ($1::uuid[])", stand.innocent) == len(stand.innocent)
    for job_id in held:
        assert await count(pool, "runs", "job_id = $1", job_id) + await count(
            pool, "history", "job_id = $1 and status = 'dead'", job_id
        ), stand.bad.get(job_id)


async def test_requeue_bury_complete_list_redrive_and_purge_beside_what_is_bad(
    stand: Stand, pool: Pool, operations: Operations
) -> None:
    await stand.make([new_job(pool) for _ in range(SIZE)])
    taken = await take(pool, limit=1000)
    assert await runs.requeue(
        pool, [Requeued(run, "retrying", 0.0, 1, 2, error_text("E", "again")) for run in taken.runs]
    ) == len(taken.runs)
    taken = await take(pool, limit=1000)
    buried = [Buried(run, 1, 2, error_text("E", "enough")) for run in taken.runs]
    assert await runs.bury(pool, buried) == len(taken.runs) == await count(pool, "dead_letters")
    shown = (await operations.dead_letters.page(limit=1000)).items
    assert len(shown) == len(taken.runs)
    batch = Batch(pool.clock.now() + timedelta(hours=1), limit=1000)
    worked = await dead_letters.redrive(pool, DeadLetterFilter(), batch, tenant="default", actor=DULY)
    assert (worked.done, worked.refused) == (len(taken.runs), 0)
    taken = await take(pool, limit=1000)
    half = len(taken.runs) // 2
    done = [succeeded(run) for run in taken.runs[:half]]
    assert await runs.complete(pool, done) == half
    await runs.bury(pool, [Buried(run, 1, 2, error_text("E", "enough")) for run in taken.runs[half:]])
    purged = await dead_letters.purge(pool, DeadLetterFilter(), batch, tenant="default", actor=DULY)
    assert purged.done == len(taken.runs) - half
    assert await count(pool, "dead_letters") == 0


async def test_a_trigger_never_fails_for_a_policy(stand: Stand, pool: Pool, operations: Operations) -> None:
    await stand.make([due_job(pool, pool.clock.now() + timedelta(hours=1)) for _ in range(SIZE)])
    for job_id in [*stand.innocent, *stand.bad]:
        await operations.jobs.trigger(str(job_id))
    assert await count(pool, "runs") == len(stand.innocent) + len(stand.bad)


# Refusals that no check foresees


Refuse = Callable[..., Awaitable[Callable[[], Awaitable[None]]]]


@pytest.fixture
async def refusing(pool: Pool) -> Refuse:
    """A function that makes the database refuse some jobs' rows in a table: as invalid data, or with another error that
    a user's trigger may raise. It returns a function that ends the refusal."""

    async def refuse(
        table: str, *job_ids: UUID, event: str = "insert", state: str = "22000"
    ) -> Callable[[], Awaitable[None]]:
        await pool.query(
            f"create or replace function duly.refuse_{table}() returns trigger language plpgsql as $$ begin "
            f"raise exception 'cannot hold this' using errcode = '{state}'; end $$"
        )
        ids = ", ".join(f"'{job_id}'" for job_id in job_ids)
        await pool.query(
            f"create trigger refuse_{table} before {event} on duly.{table} for each row "
            f"when (new.job_id in ({ids})) execute function duly.refuse_{table}()"
        )

        async def allow() -> None:
            await pool.query(f"drop trigger refuse_{table} on duly.{table}")

        return allow

    return refuse


async def claims_of(pool: Pool, jobs: int, *, claims: int) -> list[UUID]:
    await put(pool, *(new_job(pool) for _ in range(jobs * claims)))
    taken = [await take(pool, limit=jobs, lease=-1, worker_id=uuid4()) for _ in range(claims)]
    return [run.job_id for claim in taken for run in claim.runs]


async def test_a_run_that_cannot_be_taken_back_ends_with_the_reason_and_the_others_come_back(
    pool: Pool, operations: Operations, refusing: Refuse, caplog: pytest.LogCaptureFixture
) -> None:
    job_ids = await claims_of(pool, 4, claims=3)
    bad = job_ids[5]
    await refusing("runs", bad)
    rescuer = Rescuer(pool)
    rescuer.lead(True)
    await rescuer.run_once()
    assert await count(pool, "claims") == 0
    assert {row["job_id"] for row in await pool.query("select job_id from duly.runs")} == {*job_ids} - {bad}
    letter = (await operations.dead_letters.page()).items[0]
    assert letter.job_id == bad
    assert "cannot hold this" in letter.error.message
    assert str(bad) in caplog.text


async def test_a_run_that_can_not_even_be_ended_is_put_off_and_said_so(
    pool: Pool, refusing: Refuse, caplog: pytest.LogCaptureFixture
) -> None:
    job_ids = await claims_of(pool, 4, claims=2)
    bad = job_ids[2]
    allow = await refusing("runs", bad)
    await refusing("history", bad)
    rescuer = Rescuer(pool)
    rescuer.lead(True)
    await rescuer.run_once()
    assert {row["job_id"] for row in await pool.query("select job_id from duly.runs")} == {*job_ids} - {bad}
    assert await count(pool, "claims", "job_ids = array[$1::uuid] and lease_until > duly.now()", bad) == 1
    assert "tried again later" in caplog.text
    caplog.clear()
    await rescuer.run_once()
    assert not caplog.records
    # Once the database accepts the row again, the run comes back.
    await allow()
    await pool.query("update duly.claims set lease_until = duly.now() - interval '1 second'")
    await rescuer.run_once()
    assert await count(pool, "runs") == len(job_ids)
    assert await count(pool, "claims") == 0


async def test_the_run_of_many_attempts_comes_back(pool: Pool) -> None:
    policy = Policy(max_retries=10_000).to_stored()
    await put(pool, *(new_job(pool, policy=policy) for _ in range(3)))
    await pool.query("update duly.runs set attempt = 5000")
    await take(pool, lease=-1)
    assert (await maintenance.rescue(pool)).requeued == 3


async def test_an_unreadable_job_is_neither_changed_nor_resumed(pool: Pool, operations: Operations) -> None:
    job = due_job(pool, pool.clock.now() + timedelta(hours=1))
    await put(pool, job)
    await pool.query(
        "update duly.jobs set payload = $2::text::jsonb where job_id = $1", job.job_id, f'{{"a": {DIGITS}}}'
    )
    await operations.jobs.pause(str(job.job_id))
    for call in (operations.jobs.change(str(job.job_id), {"name": "x"}), operations.jobs.resume(str(job.job_id))):
        with pytest.raises(DulyError, match="payload cannot be read"):
            await call
    assert (await operations.jobs.cancel(str(job.job_id))).status == "cancelled"


# Errors that do not blame the data, and that the same job raises each time


OTHERS = ["P0001", "0A000", "54000", "XX000", "42P01"]


async def failing_passes(firer: Firer, most: int = 10) -> int:
    for failed in range(most):
        try:
            await firer.run_once()
        except StoreUnavailable:
            continue
        return failed
    raise AssertionError("every pass failed")


@pytest.mark.parametrize(
    ("table", "event", "state"),
    [*(("runs", "insert", state) for state in OTHERS), ("jobs", "update", "P0001"), ("jobs", "update", "42501")],
)
async def test_others_fire_beside_a_job_that_draws_an_error_each_time(
    pool: Pool, refusing: Refuse, caplog: pytest.LogCaptureFixture, table: str, event: str, state: str
) -> None:
    scheduler = FrozenScheduler(pool)
    jobs = spread(pool, 300, START + SECOND)
    bad, *others = jobs
    later = due_job(pool, START + 4 * SECOND)
    await scheduler.put(*jobs, later)
    await scheduler.lead(*jobs, later)
    await scheduler.loader.run_once()
    allow = await refusing(table, bad.job_id, event=event, state=state)
    await scheduler.at(START + SECOND)
    assert await failing_passes(scheduler.firer) == 2, "the batch is sent again first: the error may pass"
    assert await count(pool, "runs") == len(others)
    assert caplog.text.count(str(bad.job_id)) == 1
    assert "cannot hold this" in caplog.text
    # The bad job goes on failing, and no other job is affected.
    for second in range(2, 6):
        await scheduler.at(START + second * SECOND)
        assert await failing_passes(scheduler.firer) == 0
    assert await count(pool, "runs") == len(others) + 1
    assert len(await scheduler.runs(later)) == 1
    assert caplog.text.count(str(bad.job_id)) == 1
    assert await count(pool, "parked") == await count(pool, "jobs", "status <> 'active'") == 0
    await allow()
    await scheduler.at(START + 10 * SECOND)
    await scheduler.firer.run_once()
    assert await scheduler.runs(bad) == [START + SECOND]
    await scheduler.step(START + 20 * SECOND)
    assert await count(pool, "runs") == len(jobs) + 1
    assert await count(pool, "jobs", "next_run_at > $1", START + 60 * SECOND) == len(jobs) + 1


async def test_a_job_that_can_not_even_be_parked_keeps_nobody_from_firing(pool: Pool, refusing: Refuse) -> None:
    scheduler = FrozenScheduler(pool)
    jobs = spread(pool, 50, START + SECOND)
    await scheduler.put(*jobs)
    await scheduler.lead(*jobs)
    await scheduler.loader.run_once()
    await refusing("runs", jobs[7].job_id)
    allow = await refusing("jobs", jobs[7].job_id, event="update", state="23514")
    await scheduler.at(START + SECOND)
    for _ in range(3):
        with suppress(DataRefused):
            await scheduler.firer.run_once()
    assert await count(pool, "runs") == 49
    assert await count(pool, "jobs", "status <> 'active'") == 0
    await allow()
    await scheduler.at(START + 8 * SECOND)
    await scheduler.firer.run_once()
    assert await count(pool, "jobs", "job_id = $1 and status = 'paused'", jobs[7].job_id) == 1


async def test_when_no_job_can_be_fired_each_is_not_asked_for(pool: Pool, refusing: Refuse) -> None:
    scheduler = FrozenScheduler(pool)
    jobs = spread(pool, 500, START + SECOND)
    await scheduler.put(*jobs)
    await scheduler.lead(*jobs)
    await scheduler.loader.run_once()
    allow = await refusing("runs", *(job.job_id for job in jobs), state="P0001")
    await scheduler.at(START + SECOND)
    asked = 0
    fetch = pool.fetch

    async def counted(name: str, *args: Any) -> Any:
        nonlocal asked
        asked += name.startswith("fires/")
        return await fetch(name, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "fetch", counted)
        for _ in range(12):
            with pytest.raises(StoreUnavailable):
                await scheduler.firer.run_once()
    assert asked <= 12 * 20
    await allow()
    await scheduler.firer.run_once()
    assert await count(pool, "runs") == len(jobs)


@pytest.mark.parametrize("how", ["succeeds", "fails", "snoozes"])
async def test_outcomes_are_written_beside_some_that_draw_an_error_each_time(
    pool: Pool, settings: Settings, operations: Operations, refusing: Refuse, how: str
) -> None:
    """As many outcomes fail as the worker has places."""
    bench = Workbench(pool, settings.model_copy(update={"worker_lease_seconds": 2.0}), operations)
    begun: Counter[str] = Counter()
    go_on = asyncio.Event()

    @bench.app.task(max_retries=0)
    async def work(ctx: Context, bad: bool = False) -> None:
        begun[ctx.run_id] += 1
        if bad and begun[ctx.run_id] == 1:
            await go_on.wait()
            if how == "fails":
                raise ValueError("it failed")
            if how == "snoozes":
                raise Snooze(0.0)

    bad = [UUID(await bench.submit(work, {"bad": True})) for _ in range(3)]
    async with bench.working(concurrency=3) as worker:
        await eventually(lambda: len(begun) == 3)
        allow = await refusing("runs" if how == "snoozes" else "history", *bad, state="P0001")
        go_on.set()
        others = [await bench.submit(work) for _ in range(20)]
        for other in others:
            assert (await bench.end_of(other)).status == "succeeded"
        assert worker.completer.apart == 3
        assert await count(pool, "claims", "job_ids && $1::uuid[] and lease_until > duly.now()", bad) > 0
        assert await count(pool, "history", "job_id = any ($1::uuid[])", bad) == 0
        # The outcomes are written by themselves once the database accepts them.
        await allow()
        for job_id in bad:
            run = await bench.end_of(str(job_id))
            assert run.status == ("dead" if how == "fails" else "succeeded")
        await wait_idle(worker)
        assert worker.completer.apart == 0
    assert set(begun.values()) == ({1, 2} if how == "snoozes" else {1})
    assert await count(pool, "claims") == 0
    assert await count(pool, "jobs", "status_reason is not null") == await count(pool, "parked") == 0
    assert await count(pool, "attempts", "error ->> 'type' = 'LeaseLost'") == 0


@pytest.mark.parametrize("state", ["22000", "23514", "P0001"])
async def test_the_parked_go_on_beside_one_that_the_database_refuses(
    pool: Pool, refusing: Refuse, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    jobs = [due_job(pool, pool.clock.now()) for _ in range(40)]
    await put(pool, *jobs)
    await pool.query(
        "update duly.jobs set status = 'paused', status_reason = 'cannot be planned: x', next_run_at = null"
    )
    await pool.query("insert into duly.parked select job_id, version, duly.now() from duly.jobs")
    touched, bad = jobs[3].job_id, jobs[17].job_id
    await pool.query("update duly.jobs set version = version + 1 where job_id = $1", touched)
    allow = await refusing("jobs", bad, event="update", state=state)
    unparker = Unparker(pool)
    unparker.lead(True)
    await unparker.run_once()
    left = {row["job_id"] for row in await pool.query("select job_id from duly.jobs where status = 'paused'")}
    assert left == {touched, bad}
    assert {row["job_id"] for row in await pool.query("select job_id from duly.parked")} == {bad}
    assert f"{bad}: " in caplog.text
    assert "cannot hold this" in caplog.text
    await allow()
    await unparker.run_once()
    assert await count(pool, "jobs", "job_id = $1 and status = 'active'", bad) == 1


@pytest.mark.parametrize("state", ["22000", "23514", "P0001"])
async def test_the_guardian_repairs_beside_one_that_the_database_refuses(
    pool: Pool, refusing: Refuse, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    jobs = [due_job(pool, pool.clock.now()) for _ in range(40)]
    await put(pool, *jobs)
    await pool.query("update duly.jobs set next_run_at = null, updated_at = duly.now() - interval '1 hour'")
    bad = jobs[17].job_id
    allow = await refusing("jobs", bad, event="update", state=state)
    guardian = Guardian(pool, grace_seconds=0)
    guardian.lead(True)
    for _ in range(2):
        await guardian.run_once()
    assert {row["job_id"] for row in await pool.query("select job_id from duly.jobs where next_run_at is null")} == {
        bad
    }
    assert guardian.repaired["stalled"] == 39
    assert f"{bad}: " in caplog.text
    await allow()
    for _ in range(2):
        await guardian.run_once()
    assert await count(pool, "jobs", "next_run_at is null") == 0


@pytest.mark.parametrize("state", ["22000", "P0001"])
async def test_lost_runs_are_restored_beside_one_that_the_database_refuses(
    pool: Pool, refusing: Refuse, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    jobs = [new_job(pool) for _ in range(20)]
    await put(pool, *jobs)
    await pool.query("update duly.jobs set updated_at = duly.now() - interval '1 hour'")
    rows = await pool.query("delete from duly.runs returning job_id, scheduled_at")
    bad = jobs[4].job_id
    await refusing("runs", bad, state=state)
    guardian = Guardian(pool, grace_seconds=0)
    guardian.lead(True)
    guardian._suspects = {Suspect("lost", row["job_id"], row["scheduled_at"]): 0.0 for row in rows}
    await guardian.run_once()
    assert {row["job_id"] for row in await pool.query("select job_id from duly.runs")} == {
        job.job_id for job in jobs if job.job_id != bad
    }
    assert f"{bad}@" in caplog.text
