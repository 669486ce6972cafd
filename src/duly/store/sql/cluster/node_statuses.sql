-- Nodes and workers that are alive or were within the last hour.
with held as materialized (
    select worker_id, sum(cardinality(job_ids) - cardinality(released)) as runs from duly.live_claims group by worker_id
)
select n.node_id, n.kind, n.name, n.version, n.started_at, n.lease_until, n.stopped_at, n.info,
    n.lease_until > clock.now as alive,
    (select count(*) from duly.shards s where s.node_id = n.node_id) as shards,
    coalesce((select held.runs from held where held.worker_id = n.node_id), 0) as held
from duly.nodes n
cross join (select duly.now() as now) clock
where n.lease_until > clock.now - interval '1 hour'
order by n.kind, n.started_at
