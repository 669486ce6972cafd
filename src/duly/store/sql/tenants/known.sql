-- Reads those of these tenants that have settings: whether their jobs are counted, and what they are restricted to.
--   $1 tenants
select t.tenant, t.max_jobs is not null as counted, t.tasks, t.queues, t.commands
from duly.tenants t
where t.tenant = any ($1::text[])
