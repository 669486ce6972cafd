-- The open incidents of monitors.   $1 tenants  $2 slugs (parallel arrays)
select i.incident_id, i.tenant, i.job_id, i.monitor, i.name, i.kind, i.cause, i.message, i.scheduled_at, i.opened_at, i.closed_at,
    i.closed_why, i.acked_at, i.acked_by
from unnest($1::text[], $2::text[]) as asked (tenant, monitor)
join duly.incidents i on i.tenant = asked.tenant and i.monitor = asked.monitor
where i.job_id is null and coalesce(i.job_id::text, i.monitor) = asked.monitor and i.closed_at is null
