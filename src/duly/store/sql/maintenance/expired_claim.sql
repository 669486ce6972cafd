-- Lock one claim, if its lease has run out and nobody else has it in hand: as expired.sql does for many.
--   $1 claim_id
select claim_id
from duly.claims
where claim_id = $1 and lease_until < (select duly.now())
for update skip locked
