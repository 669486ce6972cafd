-- No more fires, and what waits does not start. Running ones are asked to stop only if $3 is true.
--   $1 job_id  $2 tenant  $3 cancel running ones too
with clock as materialized (
    select duly.now() as now
),
before as materialized (
    select job_id, next_run_at from duly.jobs where job_id = $1 and tenant = $2 for no key update
),
job as (
    update duly.jobs j
    set status = 'cancelled', next_run_at = null, updated_at = clock.now, version = version + 1
    from clock cross join before
    where j.job_id = before.job_id and j.status <> 'cancelled'
        -- A one-off that has fired is `ended`, and can be cancelled while its run lives.
        and (select shown_status from duly.job_status where job_id = $1) in ('active', 'paused')
    returning j.job_id, before.next_run_at
),
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select job_id, clock.now, 'cancelled', jsonb_build_object('next_run_at', next_run_at) from job cross join clock
),
waiting as (
    delete from duly.runs r
    using job
    where r.job_id = job.job_id
    returning r.*
),
recorded as (
    insert into duly.history (job_id, scheduled_at, fired_at, finished_at, epoch, attempt, flags, status, note)
    select job_id, scheduled_at, fired_at, clock.now, epoch, attempt, flags, 'cancelled',
        jsonb_build_object('reason', 'the job was cancelled')
    from waiting cross join clock
    on conflict do nothing
),
asked as (
    update duly.claims c
    set cancelled = c.cancelled || hit.ordinals
    from (
        select held.claim_id, array_agg(one.ordinal::int) as ordinals
        from duly.claims held
        cross join unnest(held.job_ids) with ordinality as one (job_id, ordinal)
        join job on job.job_id = one.job_id
        where $3::boolean
        group by held.claim_id
    ) hit
    where c.claim_id = hit.claim_id
    returning c.worker_id
),
told as (
    select count(pg_notify('duly_cancel', worker_id::text)::text) as workers
    from (select distinct worker_id from asked) w
)
select job.job_id, (select count(*) from waiting) as cancelled_runs, told.workers from job cross join told
