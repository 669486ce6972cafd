-- Whether a live worker offers this task, and how many seconds ago the last worker that offered it was alive.
--   $1 task  $2 the queues of the worker that asks
-- `live`: it serves one of these queues, for all tenants. `for_others`: a live worker offers it, but serves other queues
-- only, or some tenants only.
with offering as (
    select n.lease_until, n.lease_until > clock.now as is_live,
        n.info -> 'queues' ?| $2::text[] and not n.info ? 'tenants' as takes_ours
    from duly.nodes n
    cross join (select duly.now() as now) clock
    where n.kind = 'worker' and n.info -> 'tasks' ? $1::text
)
select coalesce(bool_or(is_live and takes_ours), false) as live,
    coalesce(bool_or(is_live and takes_ours is not true), false) as for_others,
    extract(epoch from duly.now() - max(lease_until))::float8 as seconds_ago
from offering
