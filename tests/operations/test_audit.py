"""The audit trail: one row for each change, in its own statement, and none for a change that was refused, rolled back
or changed nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest

from duly.app import Duly
from duly.errors import Conflict, InvalidInput, NotFound
from duly.maintenance.unparker import Unparker
from duly.model import (
    Actor,
    AuditEntry,
    AuditFilter,
    Buried,
    DeadLetterFilter,
    Declarer,
    Job,
    JobRequest,
    Policy,
    make_run_id,
    os_user,
)
from duly.operations import Operations, StoreOperations
from duly.store import fires, maintenance, runs
from duly.store.pool import Pool
from duly.store.statements import AUDIT_STEP, audit_parameter
from harness.injecting import STATEMENTS
from harness.store import count, take

ADA = Actor("api", "ada", key="k3v9x0c2m7qa", request="r-1", address="192.0.2.7")
HOURLY: dict[str, Any] = {"schedule": "every 1h"}


@pytest.fixture
def ada(store_operations: StoreOperations) -> Operations:
    return store_operations.for_tenant("default", ADA)


async def submit(operations: Operations, **fields: Any) -> Job:
    request = JobRequest(**{"handler": "report", "name": "report", **HOURLY, **fields})
    return (await operations.submit(request, allow_unknown_handler=True)).job


async def trail(operations: Operations, **wanted: Any) -> list[AuditEntry]:
    """The entries, oldest first."""
    page = await operations.audit.page(AuditFilter(**wanted))
    assert page.next_cursor is None
    return page.items[::-1]


async def newest(operations: Operations, action: str, *, of: int = 1) -> AuditEntry:
    """The only entry of this action, or the last of as many."""
    entries = await trail(operations, action=action)
    assert len(entries) == of, entries
    return entries[-1]


async def dead_run(pool: Pool, operations: Operations) -> str:
    """A dead letter."""
    await submit(operations, schedule=None)
    claim = await take(pool)
    error = '{"type": "Boom", "message": "it broke", "traceback": ""}'
    await runs.bury(pool, [Buried(run, 1, 2, error) for run in claim.runs])
    return make_run_id(claim.runs[0].job_id, claim.runs[0].scheduled_at)


async def test_each_change_of_a_job_is_one_entry(ada: Operations) -> None:
    job = await submit(ada)
    job_id = str(job.job_id)
    await ada.jobs.pause(job_id, reason="holidays")
    await ada.jobs.pause(job_id, reason="holidays")  # changes nothing
    await ada.jobs.change(job_id, {"priority": 7, "queue": "default"}, reason="first")
    await ada.jobs.change(job_id, {"priority": 7})  # changes nothing
    await ada.jobs.resume(job_id, reason="back")
    await ada.jobs.resume(job_id)  # changes nothing
    run = await ada.jobs.trigger(job_id, reason="once more")
    await ada.runs.cancel(run.run_id, reason="enough")
    with pytest.raises(Conflict):
        await ada.runs.cancel(run.run_id)
    await ada.jobs.cancel(job_id, reason="gone")
    await ada.jobs.cancel(job_id)  # changes nothing
    with pytest.raises(Conflict):
        await ada.jobs.resume(job_id)
    entries = await trail(ada, job_id=job_id)
    assert [(one.action, one.kind, one.reason) for one in entries] == [
        ("submit", "job", None),
        ("pause", "job", "holidays"),
        ("change", "job", "first"),
        ("resume", "job", "back"),
        ("trigger", "job", "once more"),
        ("cancel", "run", "enough"),
        ("cancel", "job", "gone"),
    ]
    assert {(one.via, one.actor, one.key, one.request, one.address) for one in entries} == {
        ("api", "ada", "k3v9x0c2m7qa", "r-1", "192.0.2.7")
    }
    assert {one.job_id for one in entries} == {job.job_id}
    submitted, paused, changed, resumed, triggered, ended, cancelled = entries
    assert (submitted.before, submitted.after) == (
        None,
        {"name": "report", "handler": "report", "schedule": "every 1h", "timezone": "UTC", "queue": "default"},
    )
    assert paused.before is not None
    assert paused.before["status"] == "active"
    assert paused.before["next_run_at"].startswith(f"{job.next_run_at:%Y-%m-%dT%H:%M}")
    assert paused.after == {"status": "paused"}
    assert (changed.before, changed.after) == ({"priority": 5}, {"priority": 7})
    assert resumed.before == {"status": "paused", "status_reason": "holidays"}
    assert resumed.after is not None
    assert resumed.after["status"] == "active"
    assert triggered.object == job_id
    assert triggered.after is not None
    assert triggered.after["scheduled_at"].startswith(f"{run.scheduled_at:%Y-%m-%dT%H:%M}")
    assert (ended.object, ended.before, ended.after) == (run.run_id, {"status": "queued"}, {"status": "cancelled"})
    assert cancelled.before is not None
    assert (cancelled.before["status"], cancelled.after) == ("active", {"status": "cancelled"})


async def test_a_running_run_that_is_asked_to_stop_twice_is_one_entry(pool: Pool, ada: Operations) -> None:
    job = await submit(ada, schedule=None)
    run = (await take(pool)).runs[0]
    for _ in range(2):
        await ada.runs.cancel(make_run_id(run.job_id, run.scheduled_at))
    entries = await trail(ada, job_id=str(job.job_id))
    assert [(one.action, one.before, one.after) for one in entries] == [
        ("cancel", {"status": "running"}, {"status": "asked to stop"})
    ]


async def test_a_plain_one_off_is_traffic_and_a_command_is_noted(ada: Operations) -> None:
    await submit(ada, schedule=None)
    await submit(ada, schedule=datetime.now(UTC) + timedelta(hours=1))
    assert await trail(ada) == []
    await submit(ada, schedule=None, handler={"type": "command", "argv": ["true"]})
    entry = await newest(ada, "submit")
    assert entry.after is not None
    assert entry.after["handler"] == "command"


@pytest.mark.parametrize("total", [3, 150])  # by the statement, and by a copy
async def test_a_bulk_submit_of_recurring_jobs_is_one_entry(ada: Operations, total: int) -> None:
    recurring = [JobRequest("report", schedule="every 1h") for _ in range(total)]
    made = await ada.submit_many([*recurring, JobRequest("report")], allow_unknown_handler=True)
    entry = await newest(ada, "submit")
    assert (entry.object, entry.job_id) == (None, None)
    assert entry.after is not None
    assert entry.after["jobs"] == total
    assert entry.after["job_ids"] == sorted(str(one.job_id) for one in made[:total])[:100]


async def test_a_submit_that_finds_its_job_is_no_second_entry(ada: Operations) -> None:
    for _ in range(2):
        await submit(ada, dedupe_key="k")
    await newest(ada, "submit")


async def test_a_refused_change_is_no_entry(pool: Pool, ada: Operations) -> None:
    job = await submit(ada)
    job_id = str(job.job_id)
    with pytest.raises(Conflict):
        await ada.jobs.change(job_id, {"priority": 7}, expected_version=9)
    for reason in ("", "x" * 501):
        with pytest.raises(InvalidInput, match="reason"):
            await ada.jobs.pause(job_id, reason=reason)
        with pytest.raises(InvalidInput, match="reason"):
            await ada.jobs.change(job_id, {"priority": 7}, reason=reason)
    with pytest.raises(NotFound):
        await ada.dead_letters.purge("nothing")
    assert [one.action for one in await trail(ada)] == ["submit"]
    assert (await ada.jobs.get(job_id)).status == "active"


async def test_no_entry_holds_a_secret(pool: Pool, ada: Operations) -> None:
    target = {"type": "http", "url": "https://example.org/?token=sesame", "secret_headers": {"Authorization": "sesame"}}
    job = await submit(ada, handler=target, payload={"password": "sesame", "to": "ops"},
                       policy=Policy(secret_fields=("password",)))  # fmt: skip
    await ada.jobs.change(str(job.job_id), {"payload": {"password": "sesame 2", "to": "all"}})
    await ada.jobs.change(str(job.job_id), {"handler": {**target, "secret_headers": {"Authorization": "sesame 3"}}})
    changed = [one for one in await trail(ada) if one.action == "change"]
    assert changed[0].after == {"payload": {"password": "***", "to": "all"}}
    assert changed[1].before == changed[1].after is not None
    rows = await pool.query("select audit::text as all from duly.audit")
    assert not any("sesame" in row["all"] for row in rows)


async def test_dead_letters_by_one_and_by_sweep(pool: Pool, ada: Operations) -> None:
    run_ids = [await dead_run(pool, ada) for _ in range(4)]
    await ada.dead_letters.redrive(run_ids[0], reason="fixed")
    one = await newest(ada, "redrive")
    assert (one.kind, one.object, one.reason, one.before) == ("dead_letter", run_ids[0], "fixed", None)
    assert one.after == {"count": 1, "runs": [run_ids[0]]}
    await ada.dead_letters.purge(run_ids[1])
    assert (await newest(ada, "purge")).object == run_ids[1]
    with pytest.raises(NotFound):
        await ada.dead_letters.purge(run_ids[1])
    async for _ in ada.dead_letters.redrive_all(wanted := DeadLetterFilter(queue="default")):
        pass
    swept = await newest(ada, "redrive", of=2)
    assert (swept.object, swept.before) == (None, {"filter": {"queue": "default"}})
    assert swept.after is not None
    assert (swept.after["count"], sorted(swept.after["runs"])) == (2, sorted(run_ids[2:]))
    async for _ in ada.dead_letters.purge_all(wanted):  # nothing is left
        pass
    await newest(ada, "purge")


async def test_keys_tenants_and_roles(pool: Pool, settings: Any) -> None:
    store = await StoreOperations.open(pool, settings, actor=Actor("cli", "root@db"))
    created = await store.keys.create(tenant="acme", role="write", name="ci")
    for _ in range(2):
        await store.keys.revoke(created.key.key_id, reason="leaked")
    for _ in range(2):
        await store.tenants.set("acme", max_jobs=10, tasks=["a.*"])
    await store.tenants.set("acme", max_jobs=20)
    await pool.query("drop role if exists audited_role")
    await pool.query("create role audited_role")
    try:
        for _ in range(2):
            await store.submitters.add("audited_role", tenant="acme")
        await store.submitters.remove("audited_role")
        with pytest.raises(NotFound):
            await store.submitters.remove("audited_role")
        with pytest.raises(InvalidInput):
            await store.submitters.add("no_such_role", tenant="acme")
    finally:
        await pool.query("drop role audited_role")
    entries = await trail(store.for_tenant("acme"))
    assert [(one.kind, one.action, one.object, one.before, one.after) for one in entries] == [
        ("key", "create", created.key.key_id, None, {"role": "write", "name": "ci", "expires_at": None}),
        (
            "key",
            "revoke",
            created.key.key_id,
            None,
            entries[1].after,
        ),
        ("tenant", "set", "acme", None, {"max_jobs": 10, "tasks": ["a.*"]}),
        ("tenant", "set", "acme", {"max_jobs": 10}, {"max_jobs": 20}),
        ("role", "allow", "audited_role", None, {"tenant": "acme", "commands": False}),
        ("role", "disallow", "audited_role", {"tenant": "acme", "commands": False}, None),
    ]
    assert {(one.via, one.actor) for one in entries} == {("cli", "root@db")}
    assert entries[1].reason == "leaked"
    assert await trail(store.for_tenant("default")) == []
    rows = await pool.query("select audit::text as all from duly.audit")
    assert not any(created.text in row["all"] or created.text.rpartition("_")[2] in row["all"] for row in rows)


async def test_code_that_declares_a_job_is_named_with_its_deploy(ada: Operations) -> None:
    request = JobRequest("report", schedule="0 9 * * *", dedupe_key="declared:report")
    by = Declarer("shop", "v1", "1v1", frozenset({"declared:report"}))
    for _ in range(2):
        await ada.declare_all([request], by)
    entry = await newest(ada, "submit")
    assert (entry.via, entry.actor, entry.reason) == ("code", "shop", "deploy v1 of app 'shop'")
    later = Declarer("shop", "v2", "1v2", frozenset({"declared:report"}))
    for _ in range(2):
        await ada.declare_all([JobRequest("report", schedule="0 8 * * *", dedupe_key="declared:report")], later)
    entry = await newest(ada, "redefine")
    assert (entry.via, entry.actor, entry.reason) == ("code", "shop", "deploy v2 of app 'shop'")
    assert (entry.before, entry.after) == ({"schedule": "0 9 * * *"}, {"schedule": "0 8 * * *"})


async def test_what_duly_itself_parks_and_resumes(pool: Pool, ada: Operations) -> None:
    job = await submit(ada)
    epoch = 1
    await pool.query("update duly.shards set epoch = $1", epoch)
    shard = (await pool.query("select shard from duly.jobs"))[0]["shard"]
    assert job.next_run_at is not None
    for _ in range(2):  # the second finds it parked
        await fires.park(pool, shard=shard, epoch=epoch, jobs=[(job.job_id, job.next_run_at, "its zone is gone")])
    entry = await newest(ada, "park")
    assert (entry.via, entry.actor, entry.reason) == ("scheduler", "duly", "its zone is gone")
    unparker = Unparker(pool)
    for _ in range(2):
        await unparker.work()
    entry = await newest(ada, "unpark")
    assert entry.after is not None
    assert (entry.actor, entry.after["status"]) == ("duly", "active")
    row = (await pool.query("select xmin, next_run_at from duly.jobs"))[0]
    assert row["next_run_at"] is not None
    assert await maintenance.stalled(pool, job_ids=[job.job_id]) == []


async def test_a_store_without_the_table_takes_every_change(pool: Pool, ada: Operations) -> None:
    """The store lacks the step: every change works, and nothing is noted."""
    pool._steps -= {AUDIT_STEP}
    pool._steps_read_at = float("inf")  # it is not asked again
    job_id = str((await submit(ada)).job_id)
    await ada.jobs.pause(job_id)
    await ada.jobs.change(job_id, {"priority": 7})
    await ada.jobs.resume(job_id)
    await ada.submit_many([JobRequest("report", schedule="every 1h")] * 150, allow_unknown_handler=True)
    await ada.jobs.cancel(job_id)
    assert (await ada.audit.page()).items == []
    assert await count(pool, "audit") == 0
    changes = await pool.query("select what, detail::text as detail from duly.job_changes order by change_id")
    assert [row["what"] for row in changes] == ["paused", "changed", "resumed", "cancelled"]
    assert not any("audit" in row["detail"] for row in changes)


async def test_a_submit_in_a_callers_transaction_is_noted_if_that_commits(
    database_url: str, ada: Operations, store_operations: StoreOperations
) -> None:
    app = Duly(database_url, name="shop")
    app.task("report")(lambda: None)
    connection = await asyncpg.connect(database_url)
    block = connection.transaction()
    await block.start()
    await app.submit("report", connection=connection, **HOURLY)
    await block.rollback()
    assert await trail(ada) == []
    async with connection.transaction():
        await app.submit("report", connection=connection, **HOURLY)
        await app.submit("report", connection=connection)
    await connection.close()
    entry = await newest(ada, "submit")
    assert (entry.via, entry.actor) == ("sdk", f"shop, {os_user()}")
    with psycopg.connect(database_url) as blocking:
        app.submit_sync("report", connection=blocking, **HOURLY)
    await newest(ada, "submit", of=2)
    await app.close()


async def test_a_submit_by_sql_is_its_roles(pool: Pool, ada: Operations) -> None:
    user = (await pool.query("select session_user::text as name"))[0]["name"]
    await pool.query("select duly.submit('report', schedule => 'every 1h', name => 'hourly')")
    await pool.query("select duly.submit('report')")
    await pool.query("select duly.submit('report', run_at => now() + interval '1 hour')")
    entry = await newest(ada, "submit")
    assert (entry.via, entry.actor) == ("sql", user)
    assert entry.after is not None
    assert (entry.after["name"], entry.after["schedule"]) == ("hourly", "every 1h")


async def test_pages_and_filters(pool: Pool, ada: Operations, store_operations: StoreOperations) -> None:
    job_id = str((await submit(ada)).job_id)
    other = store_operations.for_tenant("default", Actor("cli", "bob@host"))
    for number in range(6):
        await (ada if number % 3 else other).jobs.change(job_id, {"priority": number})
    assert len(await trail(ada, actor="bob@host")) == 2
    assert len(await trail(ada, actor="k3v9x0c2m7qa", action="change")) == 4
    assert await trail(ada, job_id="00000000-0000-0000-0000-000000000000") == []
    entries = await trail(ada)
    assert await trail(ada, since=entries[2].at, until=entries[4].at) == entries[2:4]
    seen: list[AuditEntry] = []
    cursor = None
    for _ in range(20):
        page = await ada.audit.page(cursor=cursor, limit=2)
        seen += page.items
        if (cursor := page.next_cursor) is None:
            break
    assert seen[::-1] == entries
    assert await trail(store_operations.for_tenant("acme")) == []
    for wrong in ("x", "zz.1", f"{'f' * 40}.1", "1.-1"):
        with pytest.raises(InvalidInput, match="cursor"):
            await ada.audit.page(cursor=wrong)


async def test_a_page_ends_where_too_many_rows_were_read(ada: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    from duly.store import audit

    job_id = str((await submit(ada)).job_id)
    for number in (1, 2, 3, 4):
        await ada.jobs.change(job_id, {"priority": number})
    monkeypatch.setattr(audit, "_MAX_ROWS_READ", 2)
    page = await ada.audit.page(AuditFilter(action="submit"))
    assert page.items == []
    found: list[AuditEntry] = []
    while page.next_cursor is not None:
        page = await ada.audit.page(AuditFilter(action="submit"), cursor=page.next_cursor)
        found += page.items
    assert [one.action for one in found] == ["submit"]


async def test_old_entries_are_deleted_in_batches(pool: Pool, ada: Operations) -> None:
    from duly.store import audit

    job_id = str((await submit(ada)).job_id)
    for number in (1, 2, 3):
        await ada.jobs.change(job_id, {"priority": number})
    await pool.query("update duly.audit set at = at - interval '2 days' where action = 'change'")
    day = timedelta(days=1).total_seconds()
    assert [await audit.prune(pool, retention_seconds=day, limit=2) for _ in range(3)] == [2, 1, 0]
    assert [one.action for one in await trail(ada)] == ["submit"]


# Statements that write one of these tables and nothing to the audit trail, each with its reason.
WATCHED = ("jobs", "api_keys", "tenants", "dead_letters", "submitters", "declarations", "parked", "audit")
NOT_NOTED = {
    "audit/copied": "is itself the note of a copy",
    "audit/prune": "the retention that the settings say",
    "declarations/bind": "which job a declaration is about; the job's own change is noted",
    "declarations/pass_key": "the name by which code knows a job",
    "declarations/rename": "the name by which code knows a job",
    "declarations/take": "that a deploy declares the job; what it changes is noted",
    "declarations/undeclare": "the pause that follows is noted",
    "fires/fire": "traffic: history has it",
    "fires/on_time": "traffic: history has it",
    "fires/release": "traffic: history has it",
    "jobs/agree": "the fingerprint of an unchanged job",
    "jobs/put_back": "the plan of a job whose change is noted",
    "jobs/put_in_order": "traffic",
    "keys/touch": "when a key was last used",
    "maintenance/give_up": "traffic: history has it",
    "maintenance/rescue": "traffic: history has it",
    "runs/bury": "traffic: history has it",
    "sql_submits/remember_settings": "the settings that schedulers bring",
    "tenants/take": "the count of a tenant's jobs",
    "zones/move": "nobody's decision: job_changes has it",
}


def _written(name: str) -> set[str]:
    from duly.store.statements import read_statement

    text = re.sub(r"--[^\n]*", "", read_statement("duly.store", name))
    tables = re.findall(r"(?:insert into|update|delete from) duly\.(\w+)", text)
    return set(tables) & set(WATCHED)


def test_every_statement_that_changes_something_is_noted() -> None:
    silent = {name for name in STATEMENTS if _written(name) and audit_parameter(name) is None}
    assert silent - NOT_NOTED.keys() == set(), "write duly.audit in these statements, or say here why not"
    assert NOT_NOTED.keys() - silent == set(), "these are gone, or noted by now"


@pytest.mark.parametrize("name", [name for name in STATEMENTS if audit_parameter(name) is not None])
def test_the_note_is_the_last_parameter(name: str) -> None:
    from duly.store.statements import statement

    bare, whole = (re.sub(r"--[^\n]*", "", statement(name, audited=audited)) for audited in (False, True))
    numbers: Sequence[set[int]] = [{int(one) for one in re.findall(r"\$(\d+)", text)} for text in (bare, whole)]
    assert "duly.audit" not in bare
    assert "duly.audit" in whole
    assert numbers[1] - numbers[0] == ({audit_parameter(name)} - {0})
    assert json.loads(ADA.note())["who"]["actor"] == "ada"
