-- All open incidents, the oldest first.   $1 limit
select incident_id, tenant, job_id, monitor, name, kind, cause, message, scheduled_at, opened_at, closed_at, closed_why,
    acked_at, acked_by
from duly.incidents
where closed_at is null
order by opened_at
limit $1
