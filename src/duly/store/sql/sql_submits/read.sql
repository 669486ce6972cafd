-- Jobs that duly.submit has stored and that are not planned yet, oldest first. A job that is gone, or no longer paused,
-- has no `kind` here: there is nothing left to plan.   $1 page size
select u.job_id as submitted, u.unnamed,
    j.job_id, j.shard, j.tenant, j.name, j.handler, j.target, j.payload, j.payload_ref, j.kind, j.schedule,
    j.timezone, j.start_at, j.end_at, j.max_runs, j.queue, j.priority, j.policy, j.dedupe_key, j.labels, j.status,
    j.status_reason, j.next_run_at, j.last_run_at, j.run_count, j.created_at, j.updated_at, j.version
from duly.sql_submits u
left join duly.jobs j on j.job_id = u.job_id and j.status = 'paused'
order by u.at, u.job_id
limit $1
