-- Cancels a job: no more fires. jobs/end_runs.sql, next in this transaction, ends its runs.
--   $1 job_id  $2 tenant
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
        -- A one-off that has fired is `ended`, and can be cancelled while its run is unfinished.
        and (select shown_status from duly.job_status where job_id = $1) in ('active', 'paused')
    returning j.job_id, before.next_run_at
),
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select job_id, clock.now, 'cancelled', jsonb_build_object('next_run_at', next_run_at) from job cross join clock
)
select job_id from job
