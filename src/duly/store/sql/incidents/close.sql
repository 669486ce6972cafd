-- Closes those of these incidents that are open, and returns their ids.   $1 ids  $2 why (parallel arrays)
update duly.incidents i
set closed_at = greatest(duly.now(), i.opened_at), closed_why = given.why
from unnest($1::uuid[], $2::text[]) as given (incident_id, why)
where i.incident_id = given.incident_id and i.closed_at is null
returning i.incident_id
