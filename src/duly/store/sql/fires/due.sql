-- What the planner needs to know of jobs whose time seems to have come. The database's clock decides whether it has:
-- `due` is false for one that a node with a fast clock brought too early.
--   $1 job_ids  $2 shard
select j.job_id, j.next_run_at, j.kind, j.schedule, j.timezone, j.start_at, j.end_at, j.max_runs, j.run_count,
    j.policy, j.created_at, j.next_run_at <= (select duly.now()) as due
from duly.jobs j
where j.job_id = any ($1::uuid[]) and j.shard = $2 and j.next_run_at is not null
