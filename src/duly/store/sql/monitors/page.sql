-- Monitors of a tenant in the order of their slugs.   $1 tenant  $2 after this slug, or null  $3 limit
select tenant, slug, description, schedule, kind, timezone, grace_seconds, max_runtime_seconds, created_at, updated_at,
    watched_from, last_start_at, last_success_at, last_failure_at, failure, starts, pings
from duly.monitors
where tenant = $1 and ($2::text is null or slug > $2)
order by slug
limit $3
