-- Counts one tenant's part of the store. Counts are bounded: beyond the bound no exact figure is needed.
--   $1 tenant  $2 maximum number of runs, letters or jobs of a status to read  $3 maximum number of jobs to count
-- Runs do not carry their tenant. If the store has few, all of them are read; if it has many, those of the tenant's own
-- jobs are, so that a tenant with few jobs has exact figures whatever the others do. A `_more` column: there are more
-- than were read. Jobs of the default tenant have no index of their own: beyond the first $3 jobs of the store, their
-- number is the estimate of all jobs minus those of other tenants.
with clock as materialized (
    select duly.now() as now
),
live as materialized (
    select r.job_id, r.state from (select job_id, state from duly.runs limit $2 + 1) r
),
looked_at as materialized (
    select count(*) as runs from live
),
going_on as materialized (
    select job_id, next_run_at
    from duly.jobs
    where tenant = $1 and tenant <> 'default' and status = 'active'
    order by job_id desc
    limit $2 + 1
),
own as materialized (
    select job_id from going_on
    union all
    (
        select job_id from duly.jobs
        where tenant = $1 and tenant <> 'default' and status = 'ended' order by job_id desc limit $2 + 1
    )
    union all
    (
        select job_id from duly.jobs
        where tenant = $1 and tenant <> 'default' and status = 'paused' order by job_id desc limit $2 + 1
    )
    union all
    select job_id
    from (select job_id, tenant from duly.jobs where $1 = 'default' order by job_id desc limit $2 + 1) newest
    where tenant = $1
),
-- Whether those are all jobs that can have a run: no status has more than were read.
whole as materialized (
    select $1 <> 'default' and not exists (
        select from (values ('active'), ('ended'), ('paused')) as s (status)
        where exists (
            select from duly.jobs j
            where j.tenant = $1 and j.tenant <> 'default' and j.status = s.status
            order by j.job_id desc
            offset $2 limit 1
        )
    ) as yes
),
mine as materialized (
    select found.state, count(*) as runs
    from (
        select live.state
        from live join duly.jobs j on j.job_id = live.job_id and j.tenant = $1
        where (select runs from looked_at) <= $2
        union all
        (
            select r.state
            from own join duly.runs r on r.job_id = own.job_id
            where (select runs from looked_at) > $2
            limit $2 + 1
        )
    ) found
    group by found.state
),
held as materialized (
    select count(*) filter (where j.tenant = $1) as runs, count(*) as looked_at
    from (
        select job_id from duly.held_runs limit $2
    ) h
    left join duly.jobs j on j.job_id = h.job_id
),
of_tenant as materialized (
    select count(*) as jobs
    from (select from duly.jobs where tenant = $1 and tenant <> 'default' limit $3 + 1) j
),
of_others as materialized (
    select count(*) as jobs
    from (select from duly.jobs where tenant <> 'default' and $1 = 'default' limit $3 + 1) j
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
        select others.reltuples::float8 from pg_class others where others.oid = 'duly.jobs_by_status'::regclass::oid
    )))::bigint) as jobs
    from pg_class c cross join first cross join of_others
    where c.oid = 'duly.jobs'::regclass::oid
),
overdue as materialized (
    select count(*) as jobs, min(g.next_run_at) as oldest, false as more
    from going_on g cross join clock
    where g.next_run_at <= clock.now and $1 <> 'default' and (select count(*) from going_on) <= $2
    union all
    select coalesce(sum(late.jobs), 0), min(late.oldest), coalesce(bool_or(late.looked_at >= 1000), false)
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
    where $1 = 'default' or (select count(*) from going_on) > $2
)
select
    case
        when $1 <> 'default' then (select jobs from of_tenant)
        when first.looked_at <= $3 then first.jobs
        else (select jobs from estimate)
    end as jobs,
    $1 = 'default' and first.looked_at > $3 as jobs_estimated,
    $1 <> 'default' and (select jobs from of_tenant) > $3 as jobs_more,
    coalesce((select runs from mine where state = 'queued'), 0) as queued,
    coalesce((select runs from mine where state = 'retrying'), 0) as retrying,
    coalesce((select runs from mine where state = 'waiting'), 0) as waiting,
    case
        when (select runs from looked_at) <= $2 then false
        when (select coalesce(sum(runs), 0)::bigint from mine) > $2 then true
        else not (select yes from whole)
    end as live_more,
    (select runs from held) as running,
    (select looked_at from held) >= $2 as running_more,
    (select count(*) from (select from duly.dead_letters where tenant = $1 limit $2) d) as dead_letters,
    (select sum(jobs)::bigint from overdue) as overdue,
    (select min(oldest) from overdue) as oldest_overdue_at,
    (select bool_or(more) from overdue) as overdue_more
from first
