-- Extend these leases of one worker, and the worker's own, in one statement. What comes back is what it still holds: a
-- claim it thinks it has and does not find here is lost. A row without a claim: the worker itself is not known here, and
-- must join again. (A promoted standby may never have heard of it.)
--   $1 worker_id  $2 lease in seconds  $3 the claims it knows of
-- By name, never all that the worker has: a claim whose answer was lost, or one that it has given up, has nobody who
-- works on its runs. Its lease must be left to run out.
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
