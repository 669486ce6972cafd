-- As `submit`, for jobs whose submit is traced: they keep its context ($25). `make columns` writes this statement
-- from that one. It is no update after it: a role that may only insert can submit through a connection of its own, and a
-- run may be claimed as soon as it is there.
--   $1 to $10: arrays with one element per job, its own fields and the number of its shape
--   $11 to $23: arrays with one element per shape, the fields that jobs of a batch share
--   $24 when they were created: one time for all, from which intervals count
--   $26 who acts (`Actor.note`); omitted for jobs that are not noted in duly.audit
-- A job_id that exists is the same submit sent again after its answer was lost; a taken dedupe_key is for the caller to
-- judge. Neither is written or returned.
-- Operators are written as PostgreSQL's own in every statement that may run on a caller's connection.
with clock as materialized (
    select duly.now() as now
),
item as materialized (
    select own.*, common.*
    from unnest($1::uuid[], $2::smallint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[],
        $8::timestamptz[], $9::text[], $10::int[])
        as own (job_id, shard, name, payload, payload_ref, dedupe_key, fingerprint, next_run_at, schedule, shape)
    join unnest($11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::timestamptz[],
        $17::timestamptz[], $18::int[], $19::text[], $20::smallint[], $21::text[], $22::text[], $23::boolean[])
        with ordinality as common (tenant, handler, target, kind, timezone, start_at, end_at, max_runs, queue,
            priority, policy, labels, immediate, number)
        on common.number operator(pg_catalog.=) own.shape
),
stored as (
    insert into duly.jobs (job_id, shard, name, payload, payload_ref, dedupe_key, fingerprint, next_run_at, schedule,
        tenant, handler, target, kind, timezone, start_at, end_at, max_runs, queue, priority, policy, labels,
        last_run_at, run_count, status, created_at, updated_at, trace)
    select job_id, shard, name, payload::jsonb, payload_ref, dedupe_key, fingerprint, next_run_at, schedule, tenant,
        handler, target::jsonb, kind, timezone, start_at, end_at, max_runs, queue, priority, policy::jsonb,
        labels::jsonb, case when immediate then clock.now end, case when immediate then 1 else 0 end,
        case when immediate then 'ended' else 'active' end, $24, $24, $25
    from item cross join clock
    on conflict do nothing
    returning job_id, shard, queue, priority, next_run_at, last_run_at
),
live as (
    insert into duly.runs (job_id, scheduled_at, run_at, fired_at, shard, priority, flags, state, queue)
    select job_id, last_run_at, last_run_at, last_run_at, shard, priority, 0, 'queued', queue
    from stored
    where last_run_at is not null
    returning queue
),
-- audited:
audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    -- One row for all jobs of a call that recur or run a command; other one-offs are traffic. `made.one`: a single job.
    select clock.now, $26::jsonb operator(pg_catalog.->>) 'tenant', $26::jsonb operator(pg_catalog.->) 'who', 'submit', 'job',
        case when made.count operator(pg_catalog.=) 1 then made.job_ids[1]::text end,
        case when made.count operator(pg_catalog.=) 1 then made.job_ids[1] end, null::jsonb,
        case when made.count operator(pg_catalog.=) 1 then made.one operator(pg_catalog.->) 0
            else jsonb_build_object('jobs', made.count, 'job_ids', made.job_ids[1:100]) end,
        $26::jsonb operator(pg_catalog.->>) 'reason'
    from (
        select count(*) as count, array_agg(item.job_id order by item.job_id) as job_ids,
            jsonb_agg(jsonb_build_object('name', item.name, 'handler', item.handler, 'schedule', item.schedule,
                'timezone', item.timezone, 'queue', item.queue)) as one
        from stored
        join item on item.job_id operator(pg_catalog.=) stored.job_id
        where item.kind operator(pg_catalog.<>) 'once' or item.handler operator(pg_catalog.=) 'command'
    ) as made
    cross join clock
    where made.count operator(pg_catalog.>) 0
),
-- end audited
notified as (
    select count(pg_notify('duly_work', queue)::text) as work
    from (select distinct queue from live) q
),
soon as (
    -- As duly.announce_due, but for more than 50 jobs the range of their new ids is announced.
    select case when count(*) operator(pg_catalog.>) 50 then
            concat('*:', min(job_id::text collate "C"), ':', max(job_id::text collate "C"))
        else
            string_agg(concat(shard, ':', job_id, ':', (extract(epoch from next_run_at) operator(pg_catalog.*) 1e6)::bigint), ',')
        end as jobs
    from stored cross join clock
    where next_run_at operator(pg_catalog.<=) (clock.now operator(pg_catalog.+) interval '15 minutes')
),
announced as (
    select count(pg_notify('duly_due', jobs)::text) as due from soon where jobs is not null
)
select stored.job_id, stored.last_run_at
from stored cross join notified cross join announced
