-- Begin terms that were won elsewhere (by an advisory lock, in etcd, in ZooKeeper): as cluster/acquire, but whoever
-- led these shards has lost them, even if its lease in duly.nodes has not run out yet. The epoch decides, here too:
-- of two nodes that both believe they were elected, one raises it from the value that both saw.
--   $1 node_id  $2 shards  $3 epochs seen
with wanted as materialized (
    select s.shard, s.epoch
    from unnest($2::smallint[], $3::int[]) as w (shard, epoch)
    join duly.shards s on s.shard = w.shard and s.epoch = w.epoch
    where exists (select from duly.nodes n where n.node_id = $1 and n.lease_until > (select duly.now()))
    order by s.shard
    for update of s skip locked
),
begun as (
    update duly.shards s
    set epoch = s.epoch + 1, node_id = $1, since = duly.now()
    from wanted
    where s.shard = wanted.shard
    returning s.shard, s.epoch
),
noted as (
    insert into duly.terms (shard, epoch, node_id, started_at)
    select shard, epoch, $1, duly.now() from begun
)
select shard, epoch from begun
