-- Extends a scheduler's lease and reads the cluster: the living nodes, and the leader and epoch of each shard.
--   $1 node_id  $2 lease in seconds
-- No row: this node's own row is gone; it must join again and leads nothing. expires_in: seconds until the first of the
-- other nodes' leases runs out, unless it is extended. Null: there are no others.
with alive as (
    update duly.nodes set lease_until = duly.now() + make_interval(secs => $2)
    where node_id = $1
    returning node_id
),
-- The time at which this statement began, not duly.now(): its view of the others is as old as that. Compared with a
-- later time, after a wait for a lock or a processor, a lease that was extended meanwhile would look expired.
clock as materialized (
    select coalesce(frozen_at, statement_timestamp() + shift) as now from duly.clock
)
select clock.now,
    array(
        select n.node_id from duly.nodes n
        where n.kind = 'scheduler' and (n.lease_until > clock.now or n.node_id = $1) order by n.node_id
    ) as nodes,
    array(select coalesce(s.node_id, '00000000-0000-0000-0000-000000000000') from duly.shards s order by s.shard)
        as leaders,
    array(select s.epoch from duly.shards s order by s.shard) as epochs,
    (
        select extract(epoch from min(n.lease_until) - clock.now)::float8 from duly.nodes n
        where n.kind = 'scheduler' and n.lease_until > clock.now and n.node_id <> $1
    ) as expires_in
from alive cross join clock
