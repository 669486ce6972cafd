-- Begin terms: take these shards from nobody, or from nodes whose lease has run out, by raising the epoch from the
-- value that was seen. Returns the new epochs; a shard that is missing went to somebody else, or its row is locked by
-- a fire that has not ended: then it is free another time, and the others need not wait for it.
--   $1 node_id  $2 shards  $3 epochs seen
with wanted as materialized (
    select s.shard, s.epoch
    from unnest($2::smallint[], $3::int[]) as w (shard, epoch)
    join duly.shards s on s.shard = w.shard and s.epoch = w.epoch
    where (s.node_id is null or s.node_id = $1 or not exists (
            -- As in cluster/beat: compared with when this statement began, which is when it saw the lease.
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
