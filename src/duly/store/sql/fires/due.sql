-- What the planner needs to know of jobs whose time seems to have come, and what the database's clock says: it decides
-- whether the time has come, not the clock of the node that asks.
--   $1 job_ids  $2 shard
select j.job_id, j.next_run_at, j.kind, j.schedule, j.timezone, j.start_at, j.end_at, j.max_runs, j.run_count,
    j.policy, j.created_at, clock.now, greatest(j.last_run_at, j.updated_at) as since
from duly.jobs j
cross join (select duly.now() as now offset 0) clock
where j.job_id = any ($1::uuid[]) and j.shard = $2 and j.next_run_at is not null
-- The order in which a fire will lock them: the one that everybody locks jobs in.
order by j.job_id
