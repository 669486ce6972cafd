-- Brings a cancelled job back that code declares: it fires again from its next future occurrence.
--   $1 job_id  $2 tenant  $3 next_run_at  $4 version the plan was made from
--   $5 who acts (`Actor.note`)
with resumed as (
    update duly.jobs j
    set status = 'active', status_reason = null, next_run_at = $3, updated_at = duly.now(), version = j.version + 1
    where j.job_id = $1 and j.tenant = $2 and j.status = 'cancelled' and j.version = $4
        and exists (select from duly.declarations d where d.job_id = j.job_id)
    returning j.job_id, j.shard, j.next_run_at, j.updated_at
),
-- audited:
audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select resumed.updated_at, $2::text, $5::jsonb -> 'who', 'resume', 'job', resumed.job_id::text, resumed.job_id,
        jsonb_build_object('status', 'cancelled'),
        jsonb_build_object('status', 'active', 'next_run_at', resumed.next_run_at), $5::jsonb ->> 'reason'
    from resumed
),
-- end audited
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select job_id, updated_at, 'resumed', jsonb_build_object('next_run_at', next_run_at) from resumed
),
announced as (
    select duly.announce_due(array_agg(shard), array_agg(job_id), array_agg(next_run_at)) from resumed
)
select job_id from resumed cross join announced
