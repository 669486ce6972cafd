-- All shards, with their leaders.
select s.shard, s.epoch, s.node_id, s.since, n.name as node, coalesce(n.lease_until > duly.now(), false) as alive
from duly.shards s
left join duly.nodes n on n.node_id = s.node_id
order by s.shard
