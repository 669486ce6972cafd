-- Puts openings and closings that are still to be sent into groups: those with one cause are sent as one message. A group
-- is made once its first member is $1 seconds old, so that the others have come too. Its id stays, however often it is
-- sent. What happened more than $2 seconds ago is not sent any more.
with pending as materialized (
    select incident_id, tenant, kind, cause, opened_at, closed_at, opening_group, closing_group,
        closed_at <= old.at as is_past
    from duly.incidents
    cross join (select duly.now() - make_interval(secs => $2) as at) old
    where not told and (
        (opening_group is null and opened_at > old.at)
        or (closed_at is not null and closing_group is null and (opening_group is not null or opened_at > old.at))
        or closed_at <= old.at
    )
    order by opened_at
    limit 20000
    for update of incidents skip locked
),
opening as materialized (
    select tenant, kind, cause, gen_random_uuid() as id
    from pending where opening_group is null and is_past is not true
    group by 1, 2, 3
    having min(opened_at) <= duly.now() - make_interval(secs => $1)
),
closing as materialized (
    select tenant, kind, cause, gen_random_uuid() as id
    from pending where closed_at is not null and closing_group is null and is_past is not true
    group by 1, 2, 3
    having min(closed_at) <= duly.now() - make_interval(secs => $1)
)
update duly.incidents i
set opening_group = coalesce(i.opening_group, o.id),
    -- Not without its opening.
    closing_group = coalesce(i.closing_group, case when coalesce(i.opening_group, o.id) is not null then c.id end),
    told = p.is_past is true
from pending p
left join opening o on o.tenant = p.tenant and o.kind = p.kind and o.cause = p.cause and p.opening_group is null
left join closing c on c.tenant = p.tenant and c.kind = p.kind and c.cause = p.cause
    and p.closed_at is not null and p.closing_group is null
where i.incident_id = p.incident_id and (o.id is not null or c.id is not null or p.is_past)
