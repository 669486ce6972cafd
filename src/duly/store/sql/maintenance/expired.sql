-- Lock claims whose lease has run out. SKIP LOCKED: one that is being completed or extended right now is not dead.
-- A statement of its own, before rescue.sql in the same transaction: rescue must look at history with a snapshot that
-- is younger than the lock, or it would put back runs whose completion committed in between.
--   $1 limit  $2 leases that ended before this are not looked at; null: all are
select claim_id
from duly.claims
where lease_until < (select duly.now()) and lease_until >= coalesce($2::timestamptz, '-infinity')
order by lease_until
limit $1
for update skip locked
