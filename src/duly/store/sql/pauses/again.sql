-- Pauses a paused job anew: its pause ends at another time (pauses/set.sql, next in this transaction), or has another
-- reason.   $1 job_id  $2 tenant  $3 reason; null: it stays  $4 who acts (`Actor.note`)
with before as materialized (
    select job_id, status_reason from duly.jobs where job_id = $1 and tenant = $2 and status = 'paused' for no key update
),
again as (
    update duly.jobs j
    set status_reason = coalesce($3::text, before.status_reason), updated_at = duly.now(), version = j.version + 1
    from before
    where j.job_id = before.job_id
    returning j.job_id, j.tenant, j.status_reason, j.updated_at
),
-- audited:
audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select again.updated_at, again.tenant, $4::jsonb -> 'who', 'pause', 'job', again.job_id::text, again.job_id,
        jsonb_build_object('status', 'paused', 'status_reason', before.status_reason) || coalesce($4::jsonb -> 'before', '{}'),
        jsonb_build_object('status', 'paused') || coalesce($4::jsonb -> 'after', '{}'), again.status_reason
    from again join before using (job_id)
),
-- end audited
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select job_id, updated_at, 'paused', jsonb_build_object('reason', status_reason) from again
)
select job_id from again
