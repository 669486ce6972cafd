-- Nodes and workers that are alive or were lately.
select n.node_id, n.kind, n.name, n.version, n.started_at, n.lease_until, n.stopped_at, n.info,
    n.lease_until > clock.now as alive,
    (select count(*) from duly.shards s where s.node_id = n.node_id) as shards,
    (select coalesce(sum(cardinality(c.job_ids) - cardinality(c.released)), 0)
        from duly.claims c where c.worker_id = n.node_id) as held
from duly.nodes n
cross join (select duly.now() as now) clock
where n.lease_until > clock.now - interval '1 hour'
order by n.kind, n.started_at
