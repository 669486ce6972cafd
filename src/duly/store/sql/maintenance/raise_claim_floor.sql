-- Let looks at all claims begin at the bar, and name those that are still held below it, as far as they are few: else
-- looks begin at the first that is not named.
--   $1 bar  $2 how many are named
with below as materialized (
    select claim_id, row_number() over (order by claim_id) as place
    from (select claim_id from duly.live_claims where claim_id < $1 order by claim_id limit $2::int + 1) held
)
update duly.claim_floor
set floor = coalesce((select claim_id from below where place = $2::int + 1), $1),
    olds = array(select claim_id from below where place <= $2::int order by claim_id)
returning floor
