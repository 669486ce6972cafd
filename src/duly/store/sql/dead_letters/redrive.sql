-- Queues dead letters again: their attempts start from zero, their idempotency key stays, because it follows from the
-- job and the occurrence. The outcome `dead` is removed from history; the failed attempts stay in duly.attempts.
--   $1 job_ids  $2 scheduled_ats: locked by dead_letters/pick.sql, released by dead_letters/let_go.sql;
--   their jobs are locked by jobs/lock.sql  $3 flags to add
--   $4 who acts (`Actor.note`), with the filter and the run ids
-- Unless the job's runs may overlap, the runs start as waiting; jobs/put_in_order.sql comes next in this transaction.
with clock as materialized (
    select duly.now() as now
),
letter as (
    delete from duly.dead_letters d
    using unnest($1::uuid[], $2::timestamptz[]) as asked (job_id, scheduled_at)
    where d.job_id = asked.job_id and d.scheduled_at = asked.scheduled_at
    returning d.job_id, d.scheduled_at, d.buried_at, d.attempt, d.error
),
ended as (
    delete from duly.history h
    using unnest($1::uuid[], $2::timestamptz[]) as asked (job_id, scheduled_at)
    where h.job_id = asked.job_id and h.scheduled_at = asked.scheduled_at and h.status = 'dead'
    returning h.job_id, h.scheduled_at, h.fired_at, h.epoch, h.flags, h.claim_id
),
live as (
    insert into duly.runs
        (job_id, scheduled_at, run_at, fired_at, epoch, shard, priority, attempt, flags, state, queue)
    select letter.job_id, letter.scheduled_at, case when serial.yes then 'infinity' else clock.now end,
        coalesce(ended.fired_at, clock.now), ended.epoch, j.shard, j.priority, 0,
        case when serial.yes then duly.as_serial(kept.flags) else kept.flags end,
        case when serial.yes then 'waiting' else 'queued' end, j.queue
    from letter
    cross join clock
    join duly.jobs j on j.job_id = letter.job_id
    cross join lateral (select duly.overlap(j.policy) <> 'parallel' as yes) serial
    left join ended on ended.job_id = letter.job_id and ended.scheduled_at = letter.scheduled_at
    cross join lateral (select coalesce(ended.flags, 0::smallint) | $3::smallint as flags) kept
    on conflict do nothing
    returning job_id, scheduled_at, queue, state
),
-- audited:
audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select clock.now, $4::jsonb ->> 'tenant', $4::jsonb -> 'who', 'redrive', 'dead_letter',
        case when made.count = 1 then $4::jsonb -> 'objects' ->> 0 end, made.job_id,
        nullif(jsonb_build_object('filter', $4::jsonb -> 'filter'), '{"filter": null}'),
        jsonb_build_object('count', made.count, 'runs', $4::jsonb -> 'objects'), $4::jsonb ->> 'reason'
    from (
        select count(*) as count, case when count(distinct job_id) = 1 then (array_agg(job_id))[1] end as job_id from letter
    ) as made
    cross join clock
    where made.count > 0
),
-- end audited
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select letter.job_id, clock.now, 'redriven', jsonb_build_object('scheduled_at', letter.scheduled_at,
        'buried_at', letter.buried_at, 'attempts', letter.attempt, 'error', letter.error ->> 'type')
    from letter cross join clock
)
select (select count(*) from live) as redriven,
    duly.heed_tokens(array(select claim_id from ended where claim_id is not null)) as heeded,
    (select count(pg_notify('duly_work', queue)::text) from (select distinct queue from live where state = 'queued') q)
        as notified
