-- Puts back runs that are in no table, with the attempts they have had. Checked again here, in one snapshot younger
-- than the lock: every other statement that could bring such a run back locks its job as well.
--   $1 job_ids, locked earlier in this transaction (jobs/lock_available.sql)  $2 scheduled_ats
-- Unless the job's runs may overlap, the runs start as waiting; jobs/put_in_order.sql comes next in this transaction.
with clock as materialized (
    select duly.now() as now
),
lost as materialized (
    select j.job_id, asked.scheduled_at, j.shard, j.priority, j.queue,
        duly.overlap(j.policy) <> 'parallel' as serial,
        coalesce((
            select max((one.tried ->> 'attempt')::int)
            from jsonb_array_elements(duly.attempts_of(j.job_id, asked.scheduled_at)) as one (tried)
        ), 0) as attempt
    from unnest($1::uuid[], $2::timestamptz[]) as asked (job_id, scheduled_at)
    cross join lateral (
        select job_id, shard, priority, queue, policy
        from duly.jobs
        where job_id = asked.job_id and status <> 'cancelled' and asked.scheduled_at in (last_run_at, extra_at)
        limit 1
    ) j
    where not duly.has_ended(asked.job_id, asked.scheduled_at)
        and (asked.job_id, asked.scheduled_at) not in (
            select held.job_id, held.scheduled_at from duly.held_runs held
        )
),
live as (
    insert into duly.runs (job_id, scheduled_at, run_at, fired_at, shard, priority, attempt, flags, state, queue)
    select job_id, scheduled_at, case when serial then 'infinity' else clock.now end, clock.now, shard, priority,
        attempt, case when serial then duly.as_serial(0::smallint) else 0::smallint end, case when serial then 'waiting' else 'queued' end, queue
    from lost cross join clock
    on conflict do nothing
    returning job_id, scheduled_at, queue, state
),
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select job_id, clock.now, 'repaired',
        jsonb_build_object('reason', 'a run was in no queue and under no lease', 'scheduled_at', scheduled_at)
    from live cross join clock
),
notified as (
    select count(pg_notify('duly_work', queue)::text) as count
    from (select distinct queue from live where state = 'queued') q
)
select live.job_id, live.scheduled_at from live cross join notified
