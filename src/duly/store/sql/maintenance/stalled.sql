-- Reads those of these jobs that are active and have no next occurrence.   $1 job_ids
select job_id, kind, schedule, timezone, start_at, end_at, policy, created_at, version, true as ours,
    duly.dealt_with_until(job_id) as dealt_with_until
from duly.jobs
where job_id = any ($1::uuid[]) and status = 'active' and next_run_at is null
