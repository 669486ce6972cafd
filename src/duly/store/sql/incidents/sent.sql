-- Notes that a channel has taken a group; what every channel has taken, opening and closing, is told.
--   $1 group  $2 closing?  $3 the channel  $4 all channels
with taken as (
    select incident_id,
        case when $2::boolean then opening_sent else array_append(opening_sent, $3::text) end as opening_sent,
        case when $2::boolean then array_append(closing_sent, $3::text) else closing_sent end as closing_sent
    from duly.incidents
    where not told and case when $2::boolean then closing_group = $1::uuid and not $3::text = any (closing_sent)
        else opening_group = $1::uuid and not $3::text = any (opening_sent) end
    for update
)
update duly.incidents i
set opening_sent = taken.opening_sent, closing_sent = taken.closing_sent,
    told = i.closed_at is not null and $4::text[] operator(pg_catalog.<@) taken.opening_sent
        and $4::text[] operator(pg_catalog.<@) taken.closing_sent
from taken
where i.incident_id = taken.incident_id
