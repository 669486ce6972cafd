-- As cluster/beat.sql, for nodes whose presence is a session advisory lock: a node without its lock is not alive,
-- whatever its lease says. Sent on the session that holds this node's own lock.
--   $1 node_id  $2 lease in seconds  $3 first key of the locks
-- No row: this node's row is gone, or this session does not hold its lock (any more).
with present as materialized (
    select l.objid::bigint as key, l.pid
    from pg_locks l
    where l.locktype = 'advisory' and l.classid = $3::bigint::oid and l.objsubid = 2 and l.granted
        and l.database = (select d.oid from pg_database d where d.datname = current_database())
),
alive as (
    update duly.nodes n set lease_until = duly.now() + make_interval(secs => $2)
    where n.node_id = $1
        and exists (select from present p where p.key = (n.info ->> 'presence')::bigint and p.pid = pg_backend_pid())
    returning n.node_id
),
clock as materialized (
    select coalesce(frozen_at, statement_timestamp() + shift) as now from duly.clock
),
others as materialized (
    select n.node_id, n.lease_until
    from duly.nodes n cross join clock
    where n.kind = 'scheduler' and n.lease_until > clock.now and n.node_id <> $1
        and exists (select from present p where p.key = (n.info ->> 'presence')::bigint)
)
select clock.now,
    array(select o.node_id from others o union all select $1 order by 1) as nodes,
    array(select coalesce(s.node_id, '00000000-0000-0000-0000-000000000000') from duly.shards s order by s.shard)
        as leaders,
    array(select s.epoch from duly.shards s order by s.shard) as epochs,
    (select extract(epoch from min(o.lease_until) - clock.now)::float8 from others o) as expires_in
from alive cross join clock
