-- Adds one extra run, now; the schedule does not move. Unless the job's runs may overlap, the run starts as waiting:
-- jobs/put_in_order.sql, next in this transaction, releases it if no run is before it.
--   $1 job_id, locked by jobs/lock.sql  $2 flags  $3 default of max_queued  $4 the schedule's own latest time, if any
--   $5 who acts (`Actor.note`)
-- `full`: max_queued is reached. `scheduled_at` null and not full: every timestamp tried is taken; call again.
with job as materialized (
    select job_id, shard, queue, priority, next_run_at, duly.now() as now,
        duly.overlap(policy) as overlap,
        duly.whole(policy, 'max_queued', $3) as max_queued
    from duly.jobs
    where job_id = $1 and status <> 'cancelled'
),
allowed as (
    select *
    from job
    where overlap = 'parallel' or max_queued > (
        select count(*) from duly.runs w where w.job_id = job.job_id and w.state = 'waiting'
    )
),
running as materialized (
    select scheduled_at from duly.held_runs where job_id = $1
),
free as (
    -- A run is identified by its job and time, so it needs a microsecond that is neither another run's nor that of an
    -- occurrence still to be fired. Almost always the first is free; a frozen clock, as in users' tests, has many runs
    -- at the same time.
    select allowed.*, moment.at
    from allowed
    cross join lateral (
        select allowed.now - n::float8 * interval '1 microsecond' as at from generate_series(0, 999) as n
    ) moment
    where moment.at is distinct from allowed.next_run_at and moment.at is distinct from $4::timestamptz
        and not duly.has_ended(allowed.job_id, moment.at)
        and (select r.state from duly.runs r where r.job_id = allowed.job_id and r.scheduled_at = moment.at) is null
        and moment.at not in (select scheduled_at from running)
    limit 1
),
live as (
    insert into duly.runs (job_id, scheduled_at, run_at, fired_at, shard, priority, flags, state, queue)
    select job_id, at, case when overlap = 'parallel' then now else 'infinity' end, now, shard, priority,
        case when overlap = 'parallel' then $2::smallint else duly.as_serial($2::smallint) end,
        case when overlap = 'parallel' then 'queued' else 'waiting' end, queue
    from free
    returning job_id, scheduled_at, queue, state
),
-- audited:
audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select job.now, $5::jsonb ->> 'tenant', $5::jsonb -> 'who', 'trigger', 'job', job.job_id::text, job.job_id,
        null::jsonb, jsonb_build_object('scheduled_at', live.scheduled_at), $5::jsonb ->> 'reason'
    from live join job using (job_id)
),
-- end audited
notified as (
    select count(pg_notify('duly_work', queue)::text) as work from live where state = 'queued'
)
select live.scheduled_at, not exists (select from allowed) and exists (select from job) as full
from notified left join live on true
