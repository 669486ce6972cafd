-- Pauses a job: no more fires until it is resumed.
--   $1 job_id  $2 tenant  $3 reason  $4 who acts (`Actor.note`)
with before as materialized (
    select job_id, next_run_at
    from duly.jobs
    where job_id = $1 and tenant = $2 and status = 'active' and next_run_at is not null
    for no key update
),
paused as (
    update duly.jobs j
    set status = 'paused', next_run_at = null, status_reason = $3, updated_at = duly.now(), version = version + 1
    from before
    where j.job_id = before.job_id and j.status = 'active'
    returning j.*
),
-- audited:
audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select paused.updated_at, paused.tenant, $4::jsonb -> 'who', 'pause', 'job', paused.job_id::text, paused.job_id,
        jsonb_build_object('status', 'active', 'next_run_at', before.next_run_at),
        jsonb_build_object('status', 'paused') || coalesce($4::jsonb -> 'after', '{}'), $3::text
    from paused join before using (job_id)
),
-- end audited
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select job_id, paused.updated_at, 'paused',
        jsonb_build_object('reason', $3::text, 'next_run_at', before.next_run_at)
    from paused join before using (job_id)
)
select job_id, shard, tenant, name, handler, target, payload, payload_ref, kind, schedule, timezone, start_at, end_at,
    max_runs, queue, priority, policy, dedupe_key, labels, status, status_reason, next_run_at, last_run_at, run_count,
    created_at, updated_at, version
from paused
