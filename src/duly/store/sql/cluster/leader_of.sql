-- The leader of a shard, and the time.   $1 shard
select s.epoch, n.name, coalesce(n.lease_until > clock.now, false) as alive, clock.now
from duly.shards s
cross join (select duly.now() as now offset 0) clock
left join duly.nodes n on n.node_id = s.node_id
where s.shard = $1
