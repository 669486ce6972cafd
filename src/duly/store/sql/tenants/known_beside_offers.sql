-- A tenant's settings as tenants/known reads them (`counted` is null if it has none), and in the same answer the defaults
-- of all tasks that set some.   $1 tenant
select t.max_jobs is not null as counted, t.tasks, t.queues, t.commands, offered.by_name as offered
from (
    select json_object_agg(h.name, h.defaults order by h.name)::text as by_name
    from duly.handlers h
    where h.defaults is not null
) offered
left join duly.tenants t on t.tenant = $1
