"""A statement that lost a deadlock changed nothing and is sent again, whether it is alone or in a transaction."""

from __future__ import annotations

from datetime import timedelta

import pytest

from duly.errors import StoreUnavailable
from duly.model import Buried, Requeued, Succeeded
from duly.store import fires, maintenance, runs
from duly.store.jobs import submit
from duly.store.pool import Pool, Querier
from harness.store import count, due_job, fire_of, hours_ago, lead, new_job, put, put_now, succeeded, take

ERROR = '{"type":"ValueError","message":"no","traceback":null}'

# A write of each kind to each table loses a deadlock the first time. A sequence remembers that beyond the rollback.
_LOSING = """
create function public.lose() returns trigger language plpgsql as $$
begin
    if nextval(format('public.%s_%s', tg_table_name, tg_op)::regclass) = 1 then
        raise deadlock_detected;
    end if;
    return null;
end $$;
do $$
declare
    name text;
    kind text;
begin
    for name in select tablename from pg_tables where schemaname = 'duly'
        and tablename in ('jobs', 'runs', 'claims', 'history', 'attempts', 'dead_letters', 'ledger', 'nodes', 'shards')
    loop
        foreach kind in array array['INSERT', 'UPDATE', 'DELETE'] loop
            execute format('create sequence public.%I', lower(name || '_' || kind));
            execute format(
                'create trigger lose_%s before %s on duly.%I for each statement execute function public.lose()',
                lower(kind), kind, name
            );
        end loop;
    end loop;
end $$
"""


@pytest.fixture
async def losing(pool: Pool) -> Pool:
    async with pool.transaction() as transaction:
        await transaction.connection.execute(_LOSING)
    return pool


async def _losses(pool: Pool) -> int:
    rows = await pool.query("select count(*) from pg_sequences where schemaname = 'public' and last_value is not null")
    return int(rows[0]["count"])


async def test_every_statement_of_a_runs_life_is_sent_again(losing: Pool) -> None:
    await put_now(losing, 3)
    assert await _losses(losing) > 0, "no deadlock was lost, so nothing was tested"
    claim = await take(losing)
    assert claim.claim_id is not None
    done, retried, dead = claim.runs
    beat = await runs.heartbeat(losing, worker_id=claim.claim_id, lease_seconds=60, claims=[claim.claim_id])
    assert not beat.joined
    assert await runs.requeue(losing, [Requeued(retried, "retrying", 0, 1, 2, ERROR)]) == 1
    assert await runs.bury(losing, [Buried(dead, 1, 2, ERROR)]) == 1
    assert await runs.complete(losing, [Succeeded(done, 1, 2, key="k")], [claim.claim_id]) == 1
    assert await count(losing, "history") == 2
    assert await count(losing, "ledger") == await count(losing, "dead_letters") == await count(losing, "runs") == 1
    await take(losing)
    await losing.query("update duly.claims set lease_until = duly.now() - interval '1 second'")
    assert (await maintenance.rescue(losing)).requeued == 1
    assert (await take(losing)).runs[0].attempt == 3


@pytest.mark.parametrize("many", [False, True])
async def test_fires_are_sent_again(losing: Pool, many: bool) -> None:
    due = hours_ago(0)
    job = due_job(losing, due)
    await put(losing, job)
    epoch = await lead(losing, job.shard)
    (seen,) = await fires.due(losing, job_ids=[job.job_id])
    batch: fires.Fires | fires.SimpleFires
    following = due + timedelta(hours=1)
    if many:
        batch = fire_of(job, next_run_at=following)
        batch.versions = [seen.version]
    else:
        assert seen.ctid is not None
        batch = fires.SimpleFires([seen.ctid], [seen.version], [job.job_id], [due], [following], [0], [job.shard])
    before = await _losses(losing)
    assert (await fires.fire(losing, epochs={job.shard: epoch}, batch=batch)).moved == {job.job_id}
    assert await _losses(losing) > before
    assert await count(losing, "runs") == 1


async def test_a_copy_of_many_jobs_is_sent_again(losing: Pool) -> None:
    jobs = [new_job(losing) for _ in range(200)]
    assert len(await submit(losing, jobs, created_at=losing.clock.now())) == 200
    assert await count(losing, "runs") == 200


async def test_several_statements_are_done_again_from_the_first(losing: Pool) -> None:
    await put_now(losing, 1)
    asked = 0

    async def work(within: Querier) -> int:
        nonlocal asked
        asked += 1
        claim = await take(within)
        return await runs.complete(within, [succeeded(claim.runs[0])], [claim.runs[0].claim_id])

    assert await losing.together(work) == 1
    assert asked > 1
    assert await count(losing, "history") == 1


@pytest.mark.parametrize("code", ["40P01", "40001"])
async def test_whatever_was_only_a_race_is_sent_again(pool: Pool, code: str) -> None:
    await pool.query("create sequence public.tries")
    await pool.query(
        f"do $$ begin if nextval('public.tries') < 3 then raise exception using errcode = '{code}'; end if; end $$"
    )
    assert (await pool.query("select last_value from public.tries"))[0]["last_value"] == 3


async def test_one_that_loses_every_time_is_given_up(pool: Pool) -> None:
    with pytest.raises(StoreUnavailable, match="40P01"):
        await pool.query("do $$ begin raise deadlock_detected; end $$")
