-- A page of a job's incidents, newest first.
--   $1 tenant  $2, $3 from before this place  $4 limit  $5 the job  $6 only open ones?
select incident_id, tenant, job_id, monitor, name, kind, cause, message, scheduled_at, opened_at, closed_at, closed_why,
    acked_at, acked_by
from duly.incidents
where job_id = $5 and tenant = $1 and (opened_at, incident_id) < ($2, $3::uuid) and (closed_at is null or not $6::boolean)
order by opened_at desc, incident_id desc
limit $4
