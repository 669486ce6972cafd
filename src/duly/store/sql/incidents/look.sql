-- What the watcher has to know about jobs, as of now.   $1 job ids
--   waiting_at: the earliest occurrence of which no run has started   unfinished_at: the earliest that is not over
--   attempt_at: when the oldest running attempt was claimed, of the run at attempt_of   mark: changes when a run moves
-- A lateral subquery per job reads the first rows of its runs only: a job may have a hundred thousand.
with held as materialized (
    select h.job_id, h.scheduled_at, h.claimed_at
    from duly.held_runs h
    where h.job_id = any ($1) and not duly.has_ended(h.job_id, h.scheduled_at)
),
running as materialized (
    select job_id, min(scheduled_at) as unfinished_at, min(claimed_at) as attempt_at, max(claimed_at) as last_at,
        (array_agg(scheduled_at order by claimed_at))[1] as attempt_of
    from held group by job_id
)
select j.job_id, j.tenant, j.name, j.queue, j.handler, j.status, j.timezone, j.policy, j.next_run_at, j.last_run_at, j.created_at,
    j.updated_at, duly.now() as now,
    least(begun.waiting_at, late.first_at) as waiting_at,
    least(queued.unfinished_at, late.first_at, running.unfinished_at) as unfinished_at,
    running.attempt_at, running.attempt_of,
    concat_ws(' ', j.last_run_at, queued.mark, running.last_at, running.unfinished_at) as mark
from unnest($1::uuid[]) as asked (job_id)
cross join lateral (select * from duly.jobs j where j.job_id = asked.job_id limit 1) j
left join running on running.job_id = j.job_id
left join lateral (
    select r.scheduled_at as unfinished_at, concat_ws(' ', r.scheduled_at, r.attempt, r.state) as mark
    from duly.runs r where r.job_id = j.job_id order by r.scheduled_at limit 1
) queued on true
left join lateral (
    select r.scheduled_at as waiting_at
    from (select * from duly.runs r where r.job_id = j.job_id order by r.scheduled_at limit 20) r
    where r.attempt = 0 and r.flags::int & 64 = 0 -- duly.states.RunFlag.BEGUN
    order by r.scheduled_at limit 1
) begun on true
left join lateral (
    select min(c.first_at) as first_at from duly.catch_ups c where c.job_id = j.job_id
) late on true
