-- Reads what the planner needs to know of jobs that seem due, and the database's time: that clock decides whether they
-- are due, not the clock of the asking node.
--   $1 job_ids
-- `ctid` and `version` name the very row that was read. `busy`: an earlier run may be unfinished, and fires/fire.sql
-- must check closely, unless the job's runs may overlap. One probe finds a queued run. A running one is in a claim, but
-- reading all claims pays only for many jobs: for few, history is asked whether the last runs have ended. History
-- cannot tell for a job whose runs may have overlapped before it was changed. fires/fire.sql decides the same with more
-- care. The two are not one function: PostgreSQL does not inline a function with subqueries, and a call per job would
-- cost more than the probe.
select j.job_id, j.kind, j.schedule, j.timezone, j.start_at, j.end_at, j.policy, j.created_at, j.next_run_at,
    j.max_runs, j.run_count, clock.now, greatest(j.last_run_at, j.updated_at) as since, j.ctid, j.xmin as version,
    case
        when j.last_run_at is null and j.extra_at is null or duly.overlap(j.policy) = 'parallel' then false
        when (select true from duly.runs r where r.job_id = j.job_id limit 1) then true
        when cardinality($1::uuid[]) >= 100 or greatest(j.last_run_at, j.extra_at) <= j.updated_at
            then j.job_id in (select duly.claimed_jobs())
        else not duly.last_runs_ended(j.job_id, j.last_run_at, j.extra_at)
    end as busy, j.shard, j.trace, j.traced_queue
-- On a store without step 0007 the column `trace` below is this one: a job's own would come first.
from (select null::text as trace) absent
cross join lateral (
    select job_id, kind, schedule, timezone, start_at, end_at, policy, created_at, next_run_at, max_runs, run_count,
        last_run_at, extra_at, updated_at, ctid, xmin, shard,
        case when kind = 'once' then trace else concat('+', trace) end as trace,
        case when kind <> 'once' or trace is not null then queue end as traced_queue
    from duly.jobs
    where job_id = any ($1::uuid[]) and next_run_at is not null
) j
cross join (select duly.now() as now offset 0) clock
-- The order in which every statement locks jobs, the fire too.
order by j.job_id
