-- Ends the waiting runs of a cancelled job, and asks the running ones to stop if $3 is true.
--   $1 job_id  $2 tenant  $3 stop running ones too?
-- Sent twice: in the transaction that cancels the job, and once more after its commit. A retry, a rescue or a claim
-- that was under way at the time saw the job before it was cancelled; the second call sees the runs that they left.
with clock as materialized (
    select duly.now() as now
),
job as materialized (
    select job_id from duly.jobs where job_id = $1 and tenant = $2 and status = 'cancelled'
),
waiting as (
    delete from duly.runs r
    using job
    where r.job_id = job.job_id and r.job_id = $1
    returning r.*
),
recorded as (
    insert into duly.history (job_id, scheduled_at, fired_at, finished_at, epoch, attempt, flags, status, note)
    select job_id, scheduled_at, fired_at, clock.now, epoch, attempt, flags, 'cancelled',
        jsonb_build_object('reason', 'the job was cancelled')
    from waiting cross join clock
    on conflict do nothing
),
running as materialized (
    select held.claim_id, array_agg(held.ordinal) as ordinals
    from duly.held_runs held
    join job on job.job_id = held.job_id
    where $3::boolean and not held.cancelled
    group by held.claim_id
),
asked as (
    update duly.claims c
    set cancelled = array_cat(c.cancelled, running.ordinals)
    from running
    where c.claim_id = running.claim_id and c.claim_id = any (array(select claim_id from running))
    returning c.worker_id
),
notified as (
    select count(pg_notify('duly_cancel', worker_id::text)::text) as workers
    from (select distinct worker_id from asked) w
)
select job.job_id, (select count(*) from waiting) as cancelled_runs, notified.workers from job cross join notified
