-- The live schedulers besides this node, and the coordinator that each of them uses.   $1 node_id
select n.name, n.info ->> 'coordinator' as coordinator, n.info ->> 'registry_path' as registry_path
from duly.nodes n
cross join (select duly.now() as now offset 0) clock
where n.kind = 'scheduler' and n.lease_until > clock.now and n.node_id <> $1 and n.info ? 'coordinator'
order by n.started_at, n.node_id
