-- How much of the store is one tenant's. Counts are bounded: whoever has more than that needs no exact figure.
--   $1 tenant  $2 how many runs or letters are looked at at most  $3 how many jobs are
-- Jobs of the default tenant have no index of their own: beyond the first $3 of the store they are what is left when the
-- others are taken away from the estimate of all. The _more columns: there is more than was looked at.
with clock as materialized (
    select duly.now() as now
),
live as materialized (
    select r.job_id, r.state from (select job_id, state from duly.runs limit $2) r
),
mine as materialized (
    select live.state, count(*) as runs
    from live join duly.jobs j on j.job_id = live.job_id and j.tenant = $1
    group by live.state
),
held as materialized (
    select count(*) filter (where j.tenant = $1) as runs, count(*) as looked_at
    from (
        select job_id
        from duly.live_claims c
        cross join lateral unnest(c.job_ids) with ordinality as u (job_id, ordinal)
        where not u.ordinal = any (c.released)
        limit $2
    ) h
    left join duly.jobs j on j.job_id = h.job_id
),
of_others as materialized (
    select count(*) as jobs
    from (select from duly.jobs where tenant <> 'default' and (tenant = $1 or $1 = 'default') limit $3 + 1) j
),
first as materialized (
    select count(*) filter (where j.tenant = $1) as jobs, count(*) as looked_at
    from (select tenant from duly.jobs where $1 = 'default' limit $3 + 1) j
),
estimate as materialized (
    select greatest(first.jobs, ((
        case when c.relpages > 0 and c.reltuples >= 0::real then c.reltuples::float8 / c.relpages::float8 else 45::float8 end
        * (pg_relation_size(c.oid) / current_setting('block_size')::int)::float8
    ) - greatest(of_others.jobs::float8, (
        select others.reltuples::float8 from pg_class others where others.oid = 'duly.jobs_of_tenant'::regclass::oid
    )))::bigint) as jobs
    from pg_class c cross join first cross join of_others
    where c.oid = 'duly.jobs'::regclass::oid
)
select
    case
        when $1 <> 'default' then (select jobs from of_others)
        when first.looked_at <= $3 then first.jobs
        else (select jobs from estimate)
    end as jobs,
    $1 = 'default' and first.looked_at > $3 as jobs_estimated,
    $1 <> 'default' and (select jobs from of_others) > $3 as jobs_more,
    coalesce((select runs from mine where state = 'queued'), 0) as queued,
    coalesce((select runs from mine where state = 'retrying'), 0) as retrying,
    coalesce((select runs from mine where state = 'waiting'), 0) as waiting,
    (select count(*) from live) >= $2 as live_more,
    (select runs from held) as running,
    (select looked_at from held) >= $2 as running_more,
    (select count(*) from (select from duly.dead_letters where tenant = $1 limit $2) d) as dead_letters,
    coalesce(overdue.count, 0)::bigint as overdue,
    overdue.oldest as oldest_overdue_at,
    coalesce(overdue.more, false) as overdue_more
from first
cross join (
    select sum(late.jobs) as count, min(late.oldest) as oldest, bool_or(late.looked_at >= 1000) as more
    from duly.shards s
    cross join clock
    cross join lateral (
        select count(*) filter (where j.tenant = $1) as jobs, min(j.next_run_at) filter (where j.tenant = $1) as oldest,
            count(*) as looked_at
        from (
            select next_run_at, tenant from duly.jobs
            where shard = s.shard and next_run_at <= clock.now
            order by next_run_at
            limit 1000
        ) j
    ) late
) overdue
