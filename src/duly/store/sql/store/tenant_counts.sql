-- How much of the store is one tenant's. Counts are bounded: whoever has more than that needs no exact figure.
--   $1 tenant  $2 how many runs or letters are counted at most
with clock as materialized (
    select duly.now() as now
),
live as materialized (
    select r.job_id, r.state from (select job_id, state from duly.runs limit $2) r
),
mine as (
    select live.state, count(*) as runs
    from live join duly.jobs j on j.job_id = live.job_id and j.tenant = $1
    group by live.state
),
held as (
    select count(*) as runs
    from (
        select job_id
        from duly.live_claims c
        cross join lateral unnest(c.job_ids) with ordinality as u (job_id, ordinal)
        where not u.ordinal = any (c.released)
        limit $2
    ) h
    join duly.jobs j on j.job_id = h.job_id and j.tenant = $1
)
select
    coalesce((select runs from mine where state = 'queued'), 0) as queued,
    coalesce((select runs from mine where state = 'retrying'), 0) as retrying,
    coalesce((select runs from mine where state = 'waiting'), 0) as waiting,
    (select runs from held) as running,
    (select count(*) from (select from duly.dead_letters where tenant = $1 limit $2) d) as dead_letters,
    overdue.count as overdue,
    overdue.oldest as oldest_overdue_at
from (
    select count(*) as count, min(next_run_at) as oldest
    from (
        select j.next_run_at, j.tenant
        from duly.shards s
        cross join clock
        cross join lateral (
            select next_run_at, tenant from duly.jobs
            where shard = s.shard and next_run_at <= clock.now
            order by next_run_at
            limit 1000
        ) j
    ) late
    where tenant = $1
) overdue
