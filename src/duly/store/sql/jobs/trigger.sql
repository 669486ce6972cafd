-- One extra run, now; the schedule does not move. Unless its job's runs may overlap, it begins as one that waits:
-- runs/line.sql, next in this transaction, lets it go if nothing stands before it.
--   $1 job_id, locked by jobs/lock.sql  $2 flags  $3 default of max_queued
-- `full`: as many wait as may. No row of either kind: the very microsecond was taken.
with job as materialized (
    select job_id, shard, queue, priority, duly.now() as now, coalesce(policy ->> 'overlap', 'skip') as overlap,
        coalesce((policy ->> 'max_queued')::int, $3) as max_queued
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
live as (
    insert into duly.runs (job_id, scheduled_at, run_at, fired_at, shard, priority, flags, state, queue)
    select job_id, now, case when overlap = 'parallel' then now else 'infinity' end, now, shard, priority,
        $2::smallint | case when overlap = 'parallel' then 0 else 8 end,
        case when overlap = 'parallel' then 'queued' else 'waiting' end, queue
    from allowed
    where not duly.has_ended(allowed.job_id, allowed.now)
    on conflict do nothing
    returning job_id, scheduled_at, queue, state
),
told as (
    select count(pg_notify('duly_work', queue)::text) as work from live where state = 'queued'
)
select live.scheduled_at, not exists (select from allowed) and exists (select from job) as full
from told left join live on true
