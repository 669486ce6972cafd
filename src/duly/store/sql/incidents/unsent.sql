-- The groups that a channel has not taken yet, the oldest first.   $1 channel  $2 groups  $3 members shown per group
--   $4 seconds after which nothing is sent any more
with groups as (
    select i.opening_group as group_id, false as closing, min(i.opened_at) as at, count(*) as size
    from duly.incidents i
    where not i.told and i.opening_group is not null and not $1::text = any (i.opening_sent)
        and i.opened_at > duly.now() - make_interval(secs => $4)
    group by 1
    union all
    select i.closing_group, true, min(i.closed_at), count(*)
    from duly.incidents i
    where not i.told and i.closing_group is not null and not $1::text = any (i.closing_sent)
        and i.closed_at > duly.now() - make_interval(secs => $4)
    group by 1
    order by at, closing
    limit $2
)
select g.group_id, g.closing, g.at, g.size, member.*
from groups g
cross join lateral (
    select i.incident_id, i.tenant, i.job_id, i.monitor, i.name, i.kind, i.cause, i.message, i.scheduled_at, i.opened_at,
        case when g.closing then i.closed_at end as closed_at, case when g.closing then i.closed_why end as closed_why
    from duly.incidents i
    where not i.told and case when g.closing then i.closing_group = g.group_id else i.opening_group = g.group_id end
    order by i.opened_at, i.name, i.incident_id
    limit $3
) member
order by g.at, g.closing, g.group_id, member.opened_at, member.name, member.incident_id
