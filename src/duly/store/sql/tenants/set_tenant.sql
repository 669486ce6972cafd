-- Sets a tenant's limits and rights. Slots are counted anew when there is a limit where there was none.
--   $1 tenant  $2 max_jobs  $3 requests_per_second  $4 tasks  $5 queues  $6 commands  $7 which of these to set
insert into duly.tenants as t (tenant, max_jobs, requests_per_second, tasks, queues, commands, created_at, updated_at)
select $1::text, $2::bigint, $3::float8, $4::text[], $5::text[], $6::boolean, clock.now, clock.now
from (select duly.now() as now) clock
on conflict (tenant) do update
set max_jobs = case when 'max_jobs' = any ($7::text[]) then excluded.max_jobs else t.max_jobs end,
    requests_per_second = case when 'requests_per_second' = any ($7::text[]) then excluded.requests_per_second
        else t.requests_per_second end,
    tasks = case when 'tasks' = any ($7::text[]) then excluded.tasks else t.tasks end,
    queues = case when 'queues' = any ($7::text[]) then excluded.queues else t.queues end,
    commands = case when 'commands' = any ($7::text[]) then excluded.commands else t.commands end,
    jobs = case when t.max_jobs is not null then t.jobs end,
    updated_at = excluded.updated_at
returning tenant, max_jobs, requests_per_second, tasks, queues, commands, created_at, updated_at
