-- Reads one page of the walk over all jobs: those whose plan may follow other rules of their zone.
--   $1 last job_id of the page before  $2 page size  $3 zones whose rules changed  $4 when
-- The last row has no kind: it tells where the page ended, null at the end of the table.
with page as materialized (
    select job_id, xmin as version, kind, schedule, timezone, start_at, end_at, policy, created_at, next_run_at, last_run_at,
        updated_at
    from duly.jobs
    where job_id > $1
    order by job_id
    limit $2
)
select job_id, kind, schedule, timezone, start_at, end_at, policy, created_at, version, next_run_at,
    greatest(last_run_at, updated_at) as planned
from page
where next_run_at is not null and kind <> 'interval' and greatest(last_run_at, updated_at) < $4
    and (timezone = any ($3::text[]) or schedule like '%TZID=%')
union all
(
    select case when count(*) = $2 then (array_agg(job_id order by job_id desc))[1] end, null, null, null, null, null, null,
        null, null, null, null
    from page
)
