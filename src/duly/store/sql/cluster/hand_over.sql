-- Give shards up so that another node may lead them.   $1 node_id  $2 shards  $3 epochs
with freed as (
    update duly.shards s
    set node_id = null
    from unnest($2::smallint[], $3::int[]) as w (shard, epoch)
    where s.shard = w.shard and s.epoch = w.epoch and s.node_id = $1
    returning s.shard
)
select count(*) as freed, (select pg_notify('duly_shards', '')::text from freed limit 1) as told from freed
