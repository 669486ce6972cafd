-- A scheduler node says that it is alive and sees who else is, and who leads what.
--   $1 node_id  $2 lease in seconds
-- No row means that this node's own row is gone: it must join again and owns nothing.
with alive as (
    update duly.nodes set lease_until = duly.now() + make_interval(secs => $2)
    where node_id = $1
    returning node_id
),
clock as materialized (
    select duly.now() as now
)
select clock.now,
    array(
        select n.node_id from duly.nodes n
        where n.kind = 'scheduler' and (n.lease_until > clock.now or n.node_id = $1) order by n.node_id
    ) as nodes,
    array(select coalesce(s.node_id, '00000000-0000-0000-0000-000000000000') from duly.shards s order by s.shard)
        as leaders,
    array(select s.epoch from duly.shards s order by s.shard) as epochs
from alive cross join clock
