-- Locks claims whose lease has run out. SKIP LOCKED: a claim that is being completed or extended right now is alive. A
-- statement of its own, before rescue.sql in the same transaction: rescue must read history with a snapshot younger
-- than the lock, or it would put back runs whose completion committed in between.
--   $1 claim_ids, found by expired.sql  $2 limit
select claim_id
from duly.claims
where claim_id = any ($1::uuid[]) and lease_until < (select duly.now())
order by lease_until
limit $2
for update skip locked
