-- A tenant's limits. Places are counted anew when there is a limit where there was none.
--   $1 tenant  $2 whether to set max_jobs  $3 max_jobs  $4 whether to set requests_per_second  $5 requests_per_second
insert into duly.tenants as t (tenant, max_jobs, requests_per_second, created_at, updated_at)
select $1::text, $3::bigint, $5::float8, clock.now, clock.now
from (select duly.now() as now) clock
on conflict (tenant) do update
set max_jobs = case when $2::boolean then excluded.max_jobs else t.max_jobs end,
    requests_per_second = case when $4::boolean then excluded.requests_per_second else t.requests_per_second end,
    jobs = case when t.max_jobs is not null then t.jobs end,
    updated_at = excluded.updated_at
returning tenant, max_jobs, requests_per_second, created_at, updated_at
