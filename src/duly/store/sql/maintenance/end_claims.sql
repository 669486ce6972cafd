-- Ends the leases of a worker whose process is known to be dead, and the worker's own; a rescue takes its runs back.
--   $1 worker_id
with ended as (
    update duly.claims c
    set lease_until = duly.now() - interval '1 microsecond'
    where c.claim_id = any (array(
        select held.claim_id from duly.live_claims held where held.worker_id = $1 and held.lease_until >= (select duly.now())
    ))
    returning c.claim_id
),
gone as (
    update duly.nodes set lease_until = duly.now(), stopped_at = duly.now()
    where node_id = $1 and stopped_at is null
)
select count(*) as ended from ended
