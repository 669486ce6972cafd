-- A page of a tenant's open incidents, newest first.   $1 tenant  $2, $3 from before this place  $4 limit
select incident_id, tenant, job_id, monitor, name, kind, cause, message, scheduled_at, opened_at, closed_at, closed_why,
    acked_at, acked_by
from duly.incidents
where tenant = $1 and (opened_at, incident_id) < ($2, $3::uuid) and closed_at is null
order by opened_at desc, incident_id desc
limit $4
