-- The open incidents of jobs: of these (null: of all), at most so many, the oldest first.   $1 job ids  $2 limit
select incident_id, tenant, job_id, monitor, name, kind, cause, message, scheduled_at, opened_at, closed_at, closed_why,
    acked_at, acked_by
from duly.incidents
where closed_at is null and job_id is not null and ($1::uuid[] is null or job_id = any ($1))
order by opened_at
limit $2
