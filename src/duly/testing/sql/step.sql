-- Moves the clock to the next event, a job that falls due or a run that may start, but not past $1. One statement,
-- because a year of an hourly job is 8,760 of these steps.
-- Returns the new time, the number of jobs due at it (2: several), and the queues in which runs may start.
with due as materialized (
    select min(head.next_run_at) as moment
    from duly.shards s
    -- One index probe per shard: a step must not read all jobs of a large store.
    cross join lateral (
        select next_run_at from duly.jobs
        where shard = s.shard and next_run_at is not null
        order by next_run_at
        limit 1
    ) head
),
-- A run that waits for another has run_at 'infinity', which is past any $1.
startable as materialized (
    select min(run_at) as moment from duly.runs
)
update duly.clock
set frozen_at = greatest(frozen_at, least($1, due.moment, startable.moment))
from due cross join startable
returning frozen_at as now,
    case when due.moment <= frozen_at then (
        select count(*)
        from (
            select one.next_run_at
            from duly.shards s
            cross join lateral (
                select next_run_at from duly.jobs where shard = s.shard and next_run_at <= frozen_at limit 2
            ) one
            limit 2
        ) found
    ) else 0 end as due,
    array(select distinct queue from duly.runs where run_at <= frozen_at) as queues
