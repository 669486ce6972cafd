-- Extends these leases of one worker, and the worker's own, in one statement. Returns the claims that it still holds:
-- one that the worker believes it has and that is missing here is lost. A row without a claim: the store does not know
-- the worker, and it must join again. (A promoted standby may have lost its row.)
--   $1 worker_id  $2 lease in seconds  $3 the claims it knows of
-- Claims are named, never all of the worker's: no one works on the runs of a claim whose answer was lost, or that the
-- worker has given up. Such a lease must run out.
with alive as (
    update duly.nodes
    set lease_until = duly.now() + make_interval(secs => $2)
    where node_id = $1
    returning node_id
),
held as materialized (
    select claim_id
    from duly.claims
    where claim_id = any ($3::uuid[]) and worker_id = $1
    order by claim_id
    for no key update
),
extended as (
    update duly.claims
    set lease_until = duly.now() + make_interval(secs => $2)
    where claim_id = any (array(select claim_id from held))
    returning claim_id, cancelled
)
select claim_id, cancelled from extended
union all
select null, null where not exists (select from alive)
