-- Reads what falls due in some shards up to a time, in groups of jobs that continue alike.
--   $1 shards  $2 tenant  $3 until  $4 maximum number of jobs to read per shard
-- One-offs are grouped by minute, others by second: a forecast shows no more, and a million jobs with starts of their
-- own become a few thousand groups. Only an RRULE without a DTSTART needs its anchor. `complete_until`: the time at
-- which the first shard with more jobs than may be read was cut off.
with near as materialized (
    select j.*
    from unnest($1::smallint[]) as s (shard)
    cross join lateral (
        select shard, tenant, kind, schedule, timezone, policy, queue, handler, next_run_at, start_at, end_at, created_at,
            max_runs - run_count as runs_left
        from duly.jobs
        where shard = s.shard and next_run_at < $3
        order by next_run_at
        limit $4
    ) j
),
seen as (
    select
        (select count(*) from near) as jobs_seen,
        (
            select min(last)
            from (select max(next_run_at) as last from near group by shard having count(*) >= $4) full_ones
        ) as complete_until
),
alike as (
    select kind, case kind when 'once' then '' else schedule end as schedule, timezone, policy, queue, handler,
        case kind when 'once' then date_trunc('minute', next_run_at) else date_trunc('second', next_run_at) end
            as next_run_at,
        case when kind = 'rrule' then coalesce(start_at, created_at) end as anchor, end_at, runs_left, count(*) as jobs
    from near
    where tenant = $2
    group by 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
)
select seen.jobs_seen, seen.complete_until, alike.*
from seen left join alike on true
