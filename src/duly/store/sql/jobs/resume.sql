-- Resumes a job from its next future occurrence; occurrences during the pause are not missed.
--   $1 job_id  $2 tenant  $3 next_run_at  $4 version the plan was made from
--   $5 who acts (`Actor.note`)
with resumed as (
    update duly.jobs
    set status = 'active', status_reason = null, next_run_at = $3, updated_at = duly.now(), version = version + 1
    where job_id = $1 and tenant = $2 and status = 'paused' and version = $4
    returning *
),
-- audited:
audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select resumed.updated_at, resumed.tenant, $5::jsonb -> 'who', 'resume', 'job', resumed.job_id::text, resumed.job_id,
        jsonb_build_object('status', 'paused', 'status_reason', before.status_reason),
        jsonb_build_object('status', 'active', 'next_run_at', resumed.next_run_at), $5::jsonb ->> 'reason'
    -- As the row was before this statement.
    from resumed join duly.jobs before on before.job_id = resumed.job_id
),
-- end audited
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select job_id, updated_at, 'resumed', jsonb_build_object('next_run_at', next_run_at)
    from resumed
),
announced as (
    select duly.announce_due(array_agg(shard), array_agg(job_id), array_agg(next_run_at)) from resumed
)
select job_id, shard, tenant, name, handler, target, payload, payload_ref, kind, schedule, timezone, start_at, end_at,
    max_runs, queue, priority, policy, dedupe_key, labels, status, status_reason, next_run_at, last_run_at, run_count,
    created_at, updated_at, version
from resumed cross join announced
