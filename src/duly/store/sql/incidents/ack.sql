-- Notes who has taken notice of an incident; who did so first stays.   $1 incident  $2 tenant  $3 by whom
update duly.incidents
set acked_at = coalesce(acked_at, duly.now()), acked_by = coalesce(acked_by, $3::text)
where incident_id = $1 and tenant = $2
returning incident_id, tenant, job_id, monitor, name, kind, cause, message, scheduled_at, opened_at, closed_at, closed_why,
    acked_at, acked_by
