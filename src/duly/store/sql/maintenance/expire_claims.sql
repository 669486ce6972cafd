-- Ends leases that were not extended since they were read; a rescue takes their runs back.
--   $1 claim_ids  $2 lease_until as read
update duly.claims c
set lease_until = duly.now() - interval '1 microsecond'
from (
    select held.claim_id
    from unnest($1::uuid[], $2::timestamptz[]) as seen (claim_id, lease_until)
    join duly.claims held on held.claim_id = seen.claim_id and held.lease_until = seen.lease_until
    order by held.claim_id
    for no key update of held skip locked
) gone
where c.claim_id = gone.claim_id
returning c.claim_id
