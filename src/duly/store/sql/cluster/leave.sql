-- A graceful end: the lease ends now and the node's shards are free at once.   $1 node_id
with left_now as (
    update duly.nodes set lease_until = duly.now(), stopped_at = duly.now() where node_id = $1
),
freed as (
    update duly.shards set node_id = null where node_id = $1 returning shard
)
select count(*) as freed, (select pg_notify('duly_shards', '')::text from freed limit 1) as told from freed
