-- One extra run, now; the schedule does not move. A microsecond is added while that very moment is taken.
--   $1 job_id  $2 tenant  $3 flags
with job as materialized (
    select job_id, shard, queue, priority, duly.now() as now
    from duly.jobs
    where job_id = $1 and tenant = $2 and status <> 'cancelled'
    for no key update
),
live as (
    insert into duly.runs (job_id, scheduled_at, run_at, fired_at, shard, priority, flags, state, queue)
    select job_id, now, now, now, shard, priority, $3, 'queued', queue
    from job
    where not exists (select from duly.history h where h.job_id = job.job_id and h.scheduled_at = job.now)
    on conflict do nothing
    returning job_id, scheduled_at, queue
),
told as (
    select count(pg_notify('duly_work', queue)::text) as work from live
)
select live.job_id, live.scheduled_at from live cross join told
