-- What the planner needs to know of jobs whose time seems to have come, and what the database's clock says: it decides
-- whether the time has come, not the clock of the node that asks.
--   $1 job_ids
-- `ctid` and `version` name the very row that was seen. `busy`: an earlier run may be unfinished, and fires/fire.sql must
-- look at it closely, unless the job's runs may overlap. One that stands in the queue is found by one probe. One that is
-- running is in a claim, but to read all claims is worth it for many jobs only: for few, history is asked whether the last
-- runs have ended. That says nothing of a job whose runs may have overlapped before it was changed.
select j.job_id, j.next_run_at, j.kind, j.schedule, j.timezone, j.start_at, j.end_at, j.max_runs, j.run_count,
    j.policy, j.created_at, clock.now, greatest(j.last_run_at, j.updated_at) as since, j.ctid, j.xmin as version,
    case
        when j.last_run_at is null and j.extra_at is null or duly.overlap(j.policy) = 'parallel' then false
        when (select true from duly.runs r where r.job_id = j.job_id limit 1) then true
        when cardinality($1::uuid[]) >= 100 or greatest(j.last_run_at, j.extra_at) <= j.updated_at
            then j.job_id in (select duly.claimed_jobs())
        else not duly.last_runs_ended(j.job_id, j.last_run_at, j.extra_at)
    end as busy, j.shard
from duly.jobs j
cross join (select duly.now() as now offset 0) clock
where j.job_id = any ($1::uuid[]) and j.next_run_at is not null
-- The order in which a fire will lock them: the one that everybody locks jobs in.
order by j.job_id
