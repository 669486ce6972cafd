-- Turns a job that was paused because no deploy declares it into one paused by a user: a declaration no longer resumes
-- it.   $1 job_id  $2 tenant  $3 reason  $4 who acts (`Actor.note`)
with kept as (
    update duly.jobs j
    set status_reason = $3, updated_at = duly.now(), version = j.version + 1
    where j.job_id = $1 and j.tenant = $2 and j.status = 'paused'
        and exists (select from duly.declarations d where d.job_id = j.job_id and d.reason = j.status_reason)
        and $3::text is distinct from j.status_reason
    returning j.job_id, j.updated_at
),
-- audited:
audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select kept.updated_at, $2::text, $4::jsonb -> 'who', 'pause', 'job', kept.job_id::text, kept.job_id,
        jsonb_build_object('status', 'paused', 'status_reason', before.status_reason),
        jsonb_build_object('status', 'paused') || coalesce($4::jsonb -> 'after', '{}'), $3::text
    from kept join duly.jobs before on before.job_id = kept.job_id
),
-- end audited
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select job_id, updated_at, 'paused', jsonb_build_object('reason', $3::text) from kept
)
select job_id from kept
