-- One job.   $1 job_id  $2 tenant
select job_id, shard, tenant, name, handler, target, payload, payload_ref, kind, schedule, timezone, start_at, end_at,
    max_runs, queue, priority, policy, dedupe_key, labels, status, status_reason, next_run_at, last_run_at, run_count,
    created_at, updated_at, version, shown_status
from duly.job_status
where job_id = $1 and tenant = $2
