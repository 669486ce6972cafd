-- The maintenance windows of a tenant that are not over yet, the next one first.   $1 tenant  $2 limit
select window_id, tenant, job_id, starts_at, ends_at, reason, created_at
from duly.maintenance_windows where tenant = $1 and ends_at > duly.now() order by starts_at, window_id limit $2
