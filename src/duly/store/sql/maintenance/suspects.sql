-- Reads one page of the guardian's walk over all jobs and returns impossible states.
--   $1 last job_id of the page before  $2 grace in seconds  $3, $4 smallest and largest page  $5 pages of a whole walk
-- stalled: active, but without a next occurrence.  lost: the latest run is in none of the three tables that hold runs.
-- All of this is one snapshot, in which a run is in exactly one table however busy it is. The last row has no problem:
-- it tells where the page ended, null at the end of the table. Days whose history was pruned cannot be asked, so runs
-- older than the oldest partition are skipped.
with size as materialized (
    select least($4::float8, greatest($3::float8, reltuples / $5::float8))::bigint as page from pg_class where oid = 'duly.jobs'::regclass::oid
),
page as materialized (
    select job_id, status, next_run_at, last_run_at, extra_at, updated_at
    from duly.jobs
    where job_id > $1
    order by job_id
    limit (select page from size)
),
bounds as materialized (
    select duly.now() - make_interval(secs => $2) as latest,
        (
            select min(to_date(right(p.relname, 8), 'YYYYMMDD'))::timestamp at time zone 'UTC'
            from pg_inherits i
            join pg_class p on p.oid = i.inhrelid
            where i.inhparent = 'duly.history'::regclass::oid and p.relname::text ~ '_\d{8}$'
        ) as earliest
),
unfinished as materialized (
    select page.job_id, run.scheduled_at
    from page
    cross join bounds
    cross join lateral (select page.last_run_at union select page.extra_at) as run (scheduled_at)
    where page.status <> 'cancelled' and run.scheduled_at >= bounds.earliest and run.scheduled_at < bounds.latest
        and not duly.has_ended(page.job_id, run.scheduled_at)
)
select 'stalled' as problem, job_id, null::timestamptz as scheduled_at
from page cross join bounds
where status = 'active' and next_run_at is null and updated_at < bounds.latest
union all
select 'lost', u.job_id, u.scheduled_at
from unfinished u
where not exists (select from duly.runs r where r.job_id = u.job_id and r.scheduled_at = u.scheduled_at)
    and (u.job_id, u.scheduled_at) not in (
        select held.job_id, held.scheduled_at from duly.held_runs held
    )
union all
(
    select null, case when count(*) = (select page from size) then (array_agg(job_id order by job_id desc))[1] end, null from page
)
