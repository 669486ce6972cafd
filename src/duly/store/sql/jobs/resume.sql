-- Resumes a job from its next future occurrence; occurrences during the pause are not missed.
--   $1 job_id  $2 tenant  $3 next_run_at  $4 version the plan was made from
with resumed as (
    update duly.jobs
    set status = 'active', status_reason = null, next_run_at = $3, updated_at = duly.now(), version = version + 1
    where job_id = $1 and tenant = $2 and status = 'paused' and version = $4
    returning *
),
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
