-- Extend every lease of one worker, and the worker's own, in one statement. What comes back is what it still holds:
-- a claim it thinks it has and does not find here is lost.
--   $1 worker_id  $2 lease in seconds
with alive as (
    update duly.nodes
    set lease_until = duly.now() + make_interval(secs => $2)
    where node_id = $1
)
update duly.claims
set lease_until = duly.now() + make_interval(secs => $2)
where worker_id = $1
returning claim_id, cancelled
