-- Turns a parked job into one paused by a user: it no longer continues by itself.
--   $1 job_id  $2 tenant  $3 reason  $4 who acts (`Actor.note`)
with kept as (
    update duly.jobs j
    set status_reason = $3, updated_at = duly.now(), version = j.version + 1
    from duly.parked p
    where j.job_id = $1 and j.tenant = $2 and j.status = 'paused' and p.job_id = j.job_id and p.version = j.version
    returning j.*
),
forgotten as (
    delete from duly.parked p using kept where p.job_id = kept.job_id
),
-- audited:
audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select kept.updated_at, kept.tenant, $4::jsonb -> 'who', 'pause', 'job', kept.job_id::text, kept.job_id,
        jsonb_build_object('status', 'paused', 'status_reason', before.status_reason),
        jsonb_build_object('status', 'paused') || coalesce($4::jsonb -> 'after', '{}'), $3::text
    from kept join duly.jobs before on before.job_id = kept.job_id
),
-- end audited
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select job_id, updated_at, 'paused', jsonb_build_object('reason', $3::text) from kept
)
select job_id, shard, tenant, name, handler, target, payload, payload_ref, kind, schedule, timezone, start_at, end_at,
    max_runs, queue, priority, policy, dedupe_key, labels, status, status_reason, next_run_at, last_run_at, run_count,
    created_at, updated_at, version
from kept
