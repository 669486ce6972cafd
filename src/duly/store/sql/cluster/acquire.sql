-- Begins terms: takes these shards by raising the epoch from the value that was seen. Returns the new epochs. A shard
-- that is missing went to another node, or its row is locked by a fire that has not ended: it can be taken later, and
-- the other shards need not wait for it.
--   $1 node_id  $2 shards  $3 epochs seen
--   $4 elected elsewhere (by an advisory lock, in etcd, in ZooKeeper)? Then the shards are taken from any leader, even
--      if its lease in duly.nodes has not run out; otherwise only if they have none, or its lease has run out.
-- The epoch decides in both cases: of two nodes that both believe they were elected, one raises it from the value that
-- both saw.
with wanted as materialized (
    select s.shard, s.epoch
    from unnest($2::smallint[], $3::int[]) as w (shard, epoch)
    join duly.shards s on s.shard = w.shard and s.epoch = w.epoch
    where ($4::boolean or s.node_id is null or s.node_id = $1 or not exists (
            -- As in cluster/beat.sql: compared with the time this statement began, which is when it saw the lease.
            select from duly.nodes n
            where n.node_id = s.node_id
                and n.lease_until > (select coalesce(frozen_at, statement_timestamp() + shift) from duly.clock)
        ))
        and exists (select from duly.nodes n where n.node_id = $1 and n.lease_until > (select duly.now()))
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
