-- As forecasts/near.sql, for a tenant other than the default one with at most $3 active jobs: exact, whatever other
-- tenants have planned.   $1 tenant  $2 until  $3 maximum number of jobs to read
with going_on as materialized (
    select kind, schedule, timezone, policy, queue, handler, next_run_at, start_at, end_at, created_at,
        max_runs - run_count as runs_left
    from duly.jobs
    where tenant = $1 and tenant <> 'default' and status = 'active'
    order by job_id desc
    limit $3 + 1
),
seen as (
    select count(*) as jobs_seen from going_on
),
alike as (
    select kind, case kind when 'once' then '' else schedule end as schedule, timezone, policy, queue, handler,
        case kind when 'once' then date_trunc('minute', next_run_at) else date_trunc('second', next_run_at) end
            as next_run_at,
        case when kind = 'rrule' then coalesce(start_at, created_at) end as anchor, end_at, runs_left, count(*) as jobs
    from going_on
    where next_run_at < $2 and (select jobs_seen from seen) <= $3
    group by 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
)
select seen.jobs_seen, null::timestamptz as complete_until, alike.*
from seen left join alike on true
