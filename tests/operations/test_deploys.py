"""Deploys of an application side by side: the older changes nothing of the newer, and what no deploy declares rests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from duly import Duly
from duly.config import Settings
from duly.errors import Conflict, InvalidInput
from duly.maintenance.orphans import Orphans
from duly.model import DEFAULT_TENANT, Declarer, Job, JobRequest
from duly.model.deploys import rank_of_setting, rank_of_time
from duly.operations import Operations, StoreOperations
from duly.operations.declare import DeclarationKeeper, Declared
from duly.store import cluster
from duly.store.pool import Pool
from harness.held import HeldPool
from harness.store import count


def job(name: str = "digest", schedule: str = "0 13 * * *", **fields: Any) -> JobRequest:
    return JobRequest(name, schedule=schedule, dedupe_key=f"declared:{name}", **fields)


def deploy(number: int | str, *requests: JobRequest, owner: str = "shop") -> Declarer:
    return Declarer(owner, str(number), rank_of_setting(str(number)), frozenset(r.dedupe_key or "" for r in requests))


class Code:
    """Declares, as a worker of some deploy does when it starts, and lives as one."""

    def __init__(self, pool: Pool, operations: Operations) -> None:
        self.pool = pool
        self.operations = operations

    async def declare(
        self, number: int, *requests: JobRequest, owner: str = "shop", renamed_from: dict[str, list[str]] | None = None
    ) -> list[Declared]:
        by = deploy(number, *requests, owner=owner)
        return await self.operations.declare_all(requests, by, renamed_from)

    async def live(self, number: int, *requests: JobRequest, owner: str = "shop") -> UUID:
        """A live worker of a deploy that has declared these jobs."""
        info = {"app": deploy(number, *requests, owner=owner).info(DEFAULT_TENANT), "tasks": []}
        return await self.worker(info)

    async def worker(self, info: dict[str, Any]) -> UUID:
        node = uuid4()
        await cluster.join(
            self.pool, node_id=node, kind="worker", name="w", version="0", lease_seconds=60, info=info
        )  # fmt: skip
        return node

    async def upkeep(self) -> None:
        orphans = Orphans(self.pool)
        orphans.lead(True)
        await orphans.run_once()

    async def job(self, name: str = "digest") -> Job:
        return await self.operations.jobs.find(name)

    async def log(self) -> list[tuple[str, dict[str, Any]]]:
        rows = await self.pool.query("select what, detail from duly.job_changes order by change_id")
        return [(row["what"], json.loads(row["detail"])) for row in rows]


@pytest.fixture
def code(pool: Pool, operations: Operations) -> Code:
    return Code(pool, operations)


@pytest.mark.parametrize(
    "ordered",
    [
        ["9", "10", "0011"],
        ["v1.9", "v1.10", "v2.0"],
        ["2026-01-05T06:00:00Z", "2026-01-05T06:00:01Z", "2026-10-01T00:00:00Z"],
        ["1763400000", "1763400001"],
    ],
)
def test_deploys_have_an_order(ordered: list[str]) -> None:
    ranks = [rank_of_setting(one) for one in ordered]
    assert ranks == sorted(set(ranks))


def test_a_deploy_that_was_set_comes_after_one_known_by_its_files(settings: Settings) -> None:
    app = Duly(settings=settings)

    @app.cron("0 9 * * *")
    def digest() -> None: ...

    derived = app.declarer(settings)
    chosen = app.declarer(settings.model_copy(update={"deploy": "1"}))
    assert derived.deploy is not None
    assert "" < derived.rank < chosen.rank
    assert rank_of_time(datetime(1980, 1, 1, tzinfo=UTC)) == "", "a build that sets no times says nothing"


class TestOlderAndNewer:
    async def test_an_older_deploy_changes_nothing_and_says_so(self, code: Code) -> None:
        await code.declare(2, job(schedule="0 10 * * *"))
        (older,) = await code.declare(1, job(schedule="0 9 * * *"))
        assert (older.outcome, (await code.job()).schedule) == ("older", "0 10 * * *")
        assert older.message is not None
        assert "this is deploy 1 of app 'shop', and deploy 2 has declared it" in older.message
        (again,) = await code.declare(3, job(schedule="0 9 * * *"))
        assert (again.outcome, (await code.job()).schedule) == ("applied", "0 9 * * *")
        ((what, detail),) = await code.log()
        assert (what, detail["reason"], detail["old"]) == (
            "redefined",
            "deploy 3 of app 'shop'",
            {"schedule": "0 10 * * *"},
        )

    async def test_an_older_one_that_is_held_at_any_statement_does_not_come_after_the_newer(
        self, code: Code, database_url: str, settings: Settings
    ) -> None:
        held = await HeldPool.connect(database_url, size=2)
        assert isinstance(held, HeldPool)
        old = Code(code.pool, (await StoreOperations.open(held, settings)).for_tenant(DEFAULT_TENANT))

        async def newer() -> None:
            # The older transaction may hold the declaration's row: then the newer waits for it.
            tasks.append(asyncio.ensure_future(code.declare(2 * turn + 2, job(schedule=f"{turn} 10 * * *"))))
            await asyncio.wait(tasks, timeout=0.2)

        held.meanwhile = newer
        for turn in range(30):
            tasks: list[asyncio.Future[Any]] = []
            held.statements, held.hold_before = 0, turn + 1
            await old.declare(2 * turn + 1, job(schedule=f"{turn} 9 * * *"))
            if not tasks:
                break
            await tasks[0]
            assert (await code.job()).schedule == f"{turn} 10 * * *", f"held before statement {turn + 1}"
        assert turn > 4, "it was held before too few statements"
        await held.close()

    async def test_many_of_both_at_once_end_with_the_newer(self, code: Code) -> None:
        await asyncio.gather(
            *(code.declare(number, job(schedule=f"0 {number} * * *")) for number in (1, 2, 3, 1, 2, 3, 2, 1))
        )
        assert (await code.job()).schedule == "0 3 * * *"
        assert await count(code.pool, "jobs") == 1

    async def test_the_job_of_an_older_duly_is_taken_over(self, code: Code) -> None:
        job_id = await code.operations.declare(job())
        (declared,) = await code.declare(1, job(schedule="0 14 * * *"))
        assert (declared.job_id, (await code.job()).schedule) == (job_id, "0 14 * * *")

    async def test_what_a_node_that_knows_no_deploys_redefines_is_put_back(self, code: Code) -> None:
        request = job(schedule="0 10 * * *")
        await code.declare(2, request)
        await code.operations.declare(job(schedule="0 9 * * *"))
        assert (await code.job()).schedule == "0 9 * * *"
        await DeclarationKeeper(code.operations.declarations, [request], deploy(2, request), {}).run_once()
        assert (await code.job()).schedule == "0 10 * * *"
        # An edit is not put back, and neither does an older deploy put anything back.
        await code.operations.jobs.change(str((await code.job()).job_id), {"schedule": "0 11 * * *"})
        for number in (1, 2):
            await DeclarationKeeper(code.operations.declarations, [request], deploy(number, request), {}).run_once()
        assert (await code.job()).schedule == "0 11 * * *"

    async def test_what_a_promoted_standby_lacks_is_declared_again(self, code: Code) -> None:
        old, new = job(schedule="0 9 * * *"), job(schedule="0 10 * * *")
        await code.declare(1, old)
        await code.live(2, new)  # it has declared its job, but the standby had not received that
        keeper = DeclarationKeeper(code.operations.declarations, [new], deploy(2, new), {})
        await keeper.run_once()
        assert (await code.job()).schedule == "0 10 * * *"
        await keeper.run_once()
        assert [what for what, _ in await code.log()] == ["redefined"]
        # Another application's declaration is not contested all the time.
        foreign = deploy(3, new, owner="billing")
        assert await code.operations.declarations.astray(foreign) == set()

    async def test_a_job_of_another_live_application_is_left_to_it(self, code: Code) -> None:
        await code.declare(1, job(), owner="shop")
        node = await code.live(1, job(), owner="shop")
        (refused,) = await code.declare(9, job(schedule="0 1 * * *"), owner="billing")
        assert (refused.outcome, (await code.job()).schedule) == ("foreign", "0 13 * * *")
        await cluster.leave(code.pool, node_id=node)
        (taken,) = await code.declare(9, job(schedule="0 1 * * *"), owner="billing")
        assert (taken.outcome, (await code.job()).schedule) == ("applied", "0 1 * * *")

    async def test_a_store_without_declarations_is_declared_to_as_before(self, code: Code) -> None:
        await code.pool.query("drop table duly.declarations")
        await code.declare(2, job(schedule="0 10 * * *"))
        await code.declare(1, job(schedule="0 9 * * *"))
        assert (await code.job()).schedule == "0 9 * * *"
        await code.upkeep()
        job_id = str((await code.job()).job_id)
        await code.operations.jobs.pause(job_id)
        await code.operations.jobs.pause(job_id)
        await code.operations.jobs.cancel(job_id)
        with pytest.raises(Conflict, match="it is cancelled"):
            await code.operations.jobs.resume(job_id)


class TestNoLongerDeclared:
    async def test_it_is_paused_when_only_newer_deploys_live(self, code: Code) -> None:
        digest, other = job(), job("other")
        await code.declare(1, digest, other)
        old = await code.live(1, digest, other)
        await code.declare(2, other)
        await code.live(2, other)
        await code.upkeep()
        assert (await code.job()).status == "active"  # deploy 1 lives
        await cluster.leave(code.pool, node_id=old)
        await code.upkeep()
        paused = await code.job()
        assert (paused.status, paused.status_reason) == (
            "paused", "no longer declared since deploy 2 of app 'shop'"
        )  # fmt: skip
        assert (await code.job("other")).status == "active"
        # An old process that starts once more does not resume it; a newer deploy that declares it does.
        (older,) = [one for one in await code.declare(1, digest, other) if one.key == "declared:digest"]
        assert (older.outcome, (await code.job()).status) == ("older", "paused")
        assert older.message is not None
        assert "deploy 2 no longer declares it" in older.message
        await code.declare(3, digest, other)
        assert (await code.job()).status == "active"

    async def test_nothing_happens_while_nobody_lives_or_an_older_duly_has_the_task(self, code: Code) -> None:
        await code.declare(1, job(), job("other"))
        await code.upkeep()
        assert (await code.job()).status == "active"
        older_duly = await code.worker({"tasks": ["digest"]})
        await code.live(2, job("other"))
        await code.upkeep()
        assert (await code.job()).status == "active"
        await cluster.leave(code.pool, node_id=older_duly)
        await code.upkeep()
        assert (await code.job()).status == "paused"

    async def test_an_operators_pause_stays_one(self, code: Code) -> None:
        digest = job()
        for pausing in ("before", "after"):
            await code.declare(1, digest, owner=pausing)
            if pausing == "before":
                await code.operations.jobs.pause(str((await code.job()).job_id), reason="mine")
            await code.live(2, owner=pausing)
            await code.upkeep()
            if pausing == "after":
                assert (await code.job()).status_reason == "no longer declared since deploy 2 of app 'after'"
                await code.operations.jobs.pause(str((await code.job()).job_id), reason="mine")
            await code.declare(3, digest, owner=pausing)
            assert ((await code.job()).status, (await code.job()).status_reason) == ("paused", "mine")
            await code.operations.jobs.resume(str((await code.job()).job_id))
            await code.pool.query("delete from duly.declarations")

    async def test_applications_without_a_name_do_not_pause_each_others_jobs(self, code: Code) -> None:
        mine, too, theirs = job("mine"), job("too"), job("theirs")
        await code.declare(1, mine, too, owner="")
        await code.declare(2, theirs, owner="")
        await code.live(2, theirs, owner="")
        await code.upkeep()
        assert (await code.job("mine")).status == "active"
        await code.declare(3, too, owner="")
        await code.live(3, too, owner="")
        await code.upkeep()
        assert (await code.job("mine")).status == "paused"
        assert (await code.job("theirs")).status == "active"

    async def test_a_declaration_that_comes_between_the_look_and_the_pause_wins(
        self, code: Code, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from duly.store import declarations

        await code.declare(1, job())
        await code.live(2)
        look = declarations.orphans

        async def and_it_is_declared(*args: Any, **options: Any) -> Any:
            found = await look(*args, **options)
            await code.declare(3, job())
            return found

        monkeypatch.setattr(declarations, "orphans", and_it_is_declared)
        await code.upkeep()
        assert (await code.job()).status == "active"


class TestCancelled:
    async def test_it_says_so_and_can_be_brought_back(self, code: Code) -> None:
        (declared,) = await code.declare(1, job())
        await code.operations.jobs.cancel(str(declared.job_id))
        (cancelled,) = await code.declare(2, job(schedule="0 14 * * *"))
        assert cancelled.outcome == "cancelled"
        assert cancelled.message is not None
        assert f"duly job resume {declared.job_id}" in cancelled.message
        back = await code.operations.jobs.resume(str(declared.job_id))
        assert (back.status, back.next_run_at is not None) == ("active", True)
        request = job(schedule="0 14 * * *")
        await DeclarationKeeper(code.operations.declarations, [request], deploy(2, request), {}).run_once()
        assert (await code.job()).schedule == "0 14 * * *"

    async def test_another_job_stays_cancelled(self, code: Code) -> None:
        submitted, _ = await code.operations.submit(JobRequest("digest", schedule="0 9 * * *"))
        await code.operations.jobs.cancel(str(submitted.job_id))
        with pytest.raises(Conflict, match="it is cancelled"):
            await code.operations.jobs.resume(str(submitted.job_id))


RENAMED = {"declared:report": ["declared:digest"]}


class TestRenamed:
    @pytest.mark.parametrize("before", ["declared by this Duly", "declared by an older Duly"])
    async def test_the_job_keeps_its_history_and_the_old_deploy_makes_none_anew(self, code: Code, before: str) -> None:
        if before == "declared by this Duly":
            (old,) = await code.declare(1, job())
            job_id = old.job_id
        else:
            job_id = await code.operations.declare(job())
        await code.operations.jobs.pause(str(job_id), reason="mine")
        (new,) = await code.declare(2, job("report"), renamed_from=RENAMED)
        renamed = await code.job("report")
        assert (new.job_id, renamed.handler, renamed.status_reason) == (job_id, "report", "mine")
        (older,) = await code.declare(1, job())
        assert older.outcome == "older"
        assert older.message is not None
        assert "deploy 2 has renamed it to declared:report" in older.message
        await code.declare(2, job("report"), renamed_from=RENAMED)
        assert await count(code.pool, "jobs") == 1
        assert (await code.job("report")).handler == "report"

    async def test_old_and_new_at_once(self, code: Code) -> None:
        calls: list[Callable[[], Any]] = [
            lambda: code.declare(1, job()),
            lambda: code.declare(2, job("report"), renamed_from=RENAMED),
        ]
        await code.declare(1, job())
        await asyncio.gather(*(call() for call in calls * 4))
        assert await count(code.pool, "jobs") == 1
        assert (await code.job("report")).handler == "report"

    async def test_a_rename_that_is_taken_back_takes_the_job_back(self, code: Code) -> None:
        await code.declare(1, job())
        await code.declare(2, job("report"), renamed_from=RENAMED)
        await code.declare(3, job())
        assert await count(code.pool, "jobs") == 1
        assert (await code.job("digest")).handler == "digest"
        (older,) = await code.declare(2, job("report"), renamed_from=RENAMED)
        assert older.outcome == "older"
        assert await count(code.pool, "jobs") == 1

    async def test_the_old_name_may_become_another_job(self, code: Code) -> None:
        await code.declare(1, job())
        await code.declare(2, job("report"), renamed_from=RENAMED)
        await code.declare(3, job("report"), job("digest"), renamed_from=RENAMED)
        assert await count(code.pool, "jobs") == 2
        assert (await code.job("report")).job_id != (await code.job("digest")).job_id
        await code.declare(4, job("digest"), job("report"), renamed_from=RENAMED)
        assert await count(code.pool, "jobs") == 2

    def test_a_wrong_name_is_refused(self) -> None:
        with pytest.raises(InvalidInput, match="renamed_from"):
            Duly().cron("0 9 * * *", renamed_from=[""])
        with pytest.raises(InvalidInput, match="name"):
            Duly(name="")


class TestHandlerOfAChange:
    async def test_waiting_runs_follow_the_job_to_its_new_handler(self, code: Code) -> None:
        from harness.store import take

        await cluster.offer_handlers(code.pool, ["digest", "report"])
        submitted, _ = await code.operations.submit(JobRequest("digest"))
        job_id = str(submitted.job_id)
        await code.operations.jobs.change(job_id, {"handler": "report"})
        assert [run.handler for run in (await take(code.pool)).runs] == ["report"]
        assert [(what, detail["old"]) for what, detail in await code.log()] == [("changed", {"handler": "digest"})]

    async def test_a_task_that_no_worker_has_is_refused(self, code: Code) -> None:
        await cluster.offer_handlers(code.pool, ["digest"])
        submitted, _ = await code.operations.submit(JobRequest("digest", schedule="0 9 * * *"))
        with pytest.raises(InvalidInput, match="no worker has a task 'rport'"):
            await code.operations.jobs.change(str(submitted.job_id), {"handler": "rport"})
        with pytest.raises(InvalidInput, match="handler"):
            await code.operations.jobs.change(str(submitted.job_id), {"handler": ""})

    async def test_a_job_becomes_a_command_only_with_the_right_to_submit_one(self, code: Code) -> None:
        from duly.errors import Forbidden
        from duly.operations.rights import Rights

        submitted, _ = await code.operations.submit(JobRequest("digest", schedule="0 9 * * *"))
        command = {"type": "command", "argv": ["id"]}
        with pytest.raises(Forbidden, match="submitting a command"):
            await code.operations.jobs.change(
                str(submitted.job_id), {"handler": command}, rights=Rights(commands=False)
            )  # fmt: skip
        changed = await code.operations.jobs.change(str(submitted.job_id), {"handler": command})
        assert isinstance(changed.handler, dict)
        assert changed.handler["argv"] == ["id"]
