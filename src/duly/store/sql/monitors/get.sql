-- One monitor.   $1 tenant  $2 slug
select tenant, slug, description, schedule, kind, timezone, grace_seconds, max_runtime_seconds, created_at, updated_at,
    watched_from, last_start_at, last_success_at, last_failure_at, failure, starts, pings
from duly.monitors
where tenant = $1 and slug = $2
