-- Whether a live worker offers this task, and how many seconds ago the last worker that offered it was alive.   $1 task
-- `for_some`: a live worker offers it that takes the runs of some tenants only.
select coalesce(bool_or(n.lease_until > clock.now and not n.info ? 'tenants'), false) as live,
    coalesce(bool_or(n.lease_until > clock.now and n.info ? 'tenants'), false) as for_some,
    extract(epoch from max(clock.now) - max(n.lease_until))::float8 as seconds_ago
from duly.nodes n
cross join (select duly.now() as now) clock
where n.kind = 'worker' and n.info -> 'tasks' ? $1::text
