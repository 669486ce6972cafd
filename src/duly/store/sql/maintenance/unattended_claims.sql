-- Claims whose lease lies far ahead although their worker is gone: no worker extends them, and no rescue takes them
-- back.
--   $1 how far ahead, in seconds  $2 limit
select c.claim_id, c.lease_until
from duly.live_claims c
cross join (select duly.now() as now offset 0) clock
where c.lease_until > clock.now + make_interval(secs => $1)
    and not exists (select from duly.nodes n where n.node_id = c.worker_id and n.lease_until > clock.now)
limit $2
