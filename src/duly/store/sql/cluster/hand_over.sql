-- Gives shards up so that another node may lead them.   $1 node_id  $2 shards  $3 epochs
with ours as materialized (
    -- In the order in which every statement locks shards: a fire of several of them may be under way.
    select s.shard
    from unnest($2::smallint[], $3::int[]) as w (shard, epoch)
    join duly.shards s on s.shard = w.shard and s.epoch = w.epoch and s.node_id = $1
    order by s.shard
    for no key update of s
),
freed as (
    update duly.shards s set node_id = null from ours where s.shard = ours.shard returning s.shard
)
select count(*) as freed, (select pg_notify('duly_shards', '')::text from freed limit 1) as notified from freed
