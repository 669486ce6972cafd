-- Tenants that have settings.   $1 only this one; null: all
select tenant, max_jobs, requests_per_second, tasks, queues, commands, created_at, updated_at
from duly.tenants
where $1::text is null or tenant = $1
order by tenant
