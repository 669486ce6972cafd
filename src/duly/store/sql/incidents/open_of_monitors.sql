-- The open incidents of monitors.   $1 tenants  $2 slugs (parallel arrays)
select i.*
from unnest($1::text[], $2::text[]) as asked (tenant, monitor)
join duly.incidents i on i.tenant = asked.tenant and i.monitor = asked.monitor
where i.job_id is null and coalesce(i.job_id::text, i.monitor) = asked.monitor and i.closed_at is null
