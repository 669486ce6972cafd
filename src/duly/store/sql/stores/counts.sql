-- Counts the store's jobs and runs. Estimates and bounded counts only: dashboards ask again and again.
--   $1 maximum number of rows of each kind to count  $2 maximum number of jobs to count
-- More jobs than that are estimated as the planner does it: by the rows per page at the last analysis and the current
-- number of pages. overdue_more: a shard has more overdue jobs than were counted.
with clock as materialized (
    select duly.now() as now
),
counted as materialized (
    select count(*) as jobs from (select from duly.jobs limit $2 + 1) j
)
select
    case when counted.jobs <= $2 then counted.jobs else greatest(counted.jobs, estimate.jobs) end as jobs,
    counted.jobs > $2 as jobs_estimated,
    (select count(*) from (select from duly.runs where state = 'queued' limit $1) r) as queued,
    (select count(*) from (select from duly.runs where state = 'retrying' limit $1) r) as retrying,
    (select count(*) from (select from duly.runs where state = 'waiting' limit $1) r) as waiting,
    (
        select coalesce(sum(cardinality(job_ids) - cardinality(released)), 0)::bigint from duly.live_claims
    ) as running,
    (select count(*) from (select from duly.dead_letters limit $1) d) as dead_letters,
    coalesce(overdue.count, 0)::bigint as overdue,
    overdue.oldest as oldest_overdue_at,
    coalesce(overdue.more, false) as overdue_more
from counted
cross join lateral (
    select (
        case when c.relpages > 0 and c.reltuples >= 0::real then c.reltuples::float8 / c.relpages::float8 else 45::float8 end
        * (pg_relation_size(c.oid) / current_setting('block_size')::int)::float8
    )::bigint as jobs
    from pg_class c
    where c.oid = 'duly.jobs'::regclass::oid
) estimate
cross join (
    select sum(late.jobs) as count, min(late.oldest) as oldest, bool_or(late.jobs >= 1000) as more
    from duly.shards s
    cross join clock
    cross join lateral (
        select count(*) as jobs, min(j.next_run_at) as oldest
        from (
            select next_run_at from duly.jobs
            where shard = s.shard and next_run_at <= clock.now
            order by next_run_at
            limit 1000
        ) j
    ) late
) overdue
