-- Locks monitors at which the watch has to look, without those that a ping or another leader holds, and returns them with
-- the time of this look.   $1 limit
select m.tenant, m.slug, m.description, m.schedule, m.kind, m.timezone, m.grace_seconds, m.max_runtime_seconds, m.created_at,
    m.updated_at, m.watched_from, m.last_start_at, m.last_success_at, m.last_failure_at, m.failure, m.starts, m.pings,
    clock.now
from (select duly.now() as now) clock
join lateral (
    select * from duly.monitors m
    where m.look_at <= clock.now
    order by m.look_at
    limit $1
    for no key update skip locked
) m on true
