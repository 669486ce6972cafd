-- Cancels a job: no more fires. jobs/end_runs.sql, next in this transaction, ends its runs.
--   $1 job_id  $2 tenant  $3 who acts (`Actor.note`)
with clock as materialized (
    select duly.now() as now
),
before as materialized (
    select job_id, next_run_at, status from duly.jobs where job_id = $1 and tenant = $2 for no key update
),
job as (
    update duly.jobs j
    set status = 'cancelled', next_run_at = null, updated_at = clock.now, version = version + 1
    from clock cross join before
    where j.job_id = before.job_id and j.status <> 'cancelled'
        -- A one-off that has fired is `ended`, and can be cancelled while its run is unfinished.
        and (select shown_status from duly.job_status where job_id = $1) in ('active', 'paused')
    returning j.job_id, before.next_run_at, before.status
),
-- audited:
audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select clock.now, $2::text, $3::jsonb -> 'who', 'cancel', 'job', job.job_id::text, job.job_id,
        jsonb_build_object('status', job.status, 'next_run_at', job.next_run_at),
        jsonb_build_object('status', 'cancelled') || coalesce($3::jsonb -> 'after', '{}'), $3::jsonb ->> 'reason'
    from job cross join clock
),
-- end audited
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select job_id, clock.now, 'cancelled', jsonb_build_object('next_run_at', next_run_at) from job cross join clock
)
select job_id from job
