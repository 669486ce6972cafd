-- What some jobs demand of a worker: those whose runs wait, those due next, the newest, and those changed last.
--   $1 maximum number of lanes  $2 runs per lane  $3 jobs due per shard  $4 newest jobs, and changes
-- Bounded, however full the store is: it shows what the survey has not come to yet.
with recursive lane as (
    (select queue, priority, 1 as number from duly.runs order by queue, priority limit 1)
    union all
    select next.queue, next.priority, lane.number + 1
    from lane
    cross join lateral (
        select r.queue, r.priority
        from duly.runs r
        where (r.queue, r.priority) > (lane.queue, lane.priority)
        order by r.queue, r.priority
        limit 1
    ) next
    where lane.number < $1
),
looked as materialized (
    select head.job_id, 1 as runs
    from lane
    cross join lateral (
        select r.job_id
        from duly.runs r
        where r.queue = lane.queue and r.priority = lane.priority and r.run_at < 'infinity'
        order by r.run_at
        limit $2
    ) head
    union all
    select due.job_id, 0
    from duly.shards s
    cross join lateral (
        select j.job_id
        from duly.jobs j
        where j.shard = s.shard and j.next_run_at is not null
        order by j.next_run_at
        limit $3
    ) due
    union all
    (select job_id, 0 from duly.jobs order by job_id desc limit $4)
    union all
    (select job_id, 0 from duly.job_changes order by change_id desc limit $4)
),
seen as materialized (
    select job_id, sum(runs) as runs from looked group by job_id
)
select j.tenant, j.queue,
    case when j.target is null then 'task' else j.handler end as kind,
    case when j.target is null then j.handler else coalesce(left(j.target -> 'argv' ->> 0, 200), '') end as handler,
    count(*) filter (where j.status = 'active') as jobs, sum(seen.runs)::bigint as runs,
    (array_agg(j.job_id))[1] as job_id, (array_agg(j.name))[1] as job_name
from seen
-- Lateral with a limit: always one index probe per job.
cross join lateral (
    select job_id, tenant, queue, handler, target, status, name from duly.jobs where job_id = seen.job_id limit 1
) j
where j.status = 'active' or seen.runs > 0
group by 1, 2, 3, 4
