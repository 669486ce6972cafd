-- Ends a node's lease now and frees its shards at once: a graceful shutdown.   $1 node_id
with left_now as (
    update duly.nodes set lease_until = duly.now(), stopped_at = duly.now() where node_id = $1
),
ours as materialized (
    -- In the order in which every statement locks shards: a fire of several of them may be under way.
    select shard from duly.shards where node_id = $1 order by shard for no key update
),
freed as (
    update duly.shards s set node_id = null from ours where s.shard = ours.shard returning s.shard
)
select count(*) as freed, (select pg_notify('duly_shards', '')::text from freed limit 1) as notified from freed
