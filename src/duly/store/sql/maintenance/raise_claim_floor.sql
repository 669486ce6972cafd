-- Raises the floor to the bar, and lists up to $2 claims still held below it. If there are more, the floor rises only
-- to the first claim that is not listed.
--   $1 bar  $2 maximum number of claims to list
with below as materialized (
    select claim_id, row_number() over (order by claim_id) as number
    from (select claim_id from duly.live_claims where claim_id < $1 order by claim_id limit $2::int + 1) held
)
update duly.claim_floor
set floor = coalesce((select claim_id from below where number = $2::int + 1), $1),
    olds = array(select claim_id from below where number <= $2::int order by claim_id)
returning floor
