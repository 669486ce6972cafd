-- Jobs whose id begins with a prefix, for people at a keyboard.   $1 tenant  $2, $3 lowest and highest id with it
select job_id, shard, tenant, name, handler, target, payload, payload_ref, kind, schedule, timezone, start_at, end_at,
    max_runs, queue, priority, policy, dedupe_key, labels, status, status_reason, next_run_at, last_run_at, run_count,
    created_at, updated_at, version, shown_status
from duly.job_status
where tenant = $1 and job_id between $2 and $3
order by job_id desc
limit 5
