-- As tenants/room, for transactions of our own: somebody may have locked the tenant in a transaction that they keep open,
-- and then whoever asks is told so after a while. Only this lock is waited for so briefly.
--   $1 tenant  $2 how many are wanted  $3 the settings' limit  $4 how long to wait, as lock_timeout takes it
select asked.room, set_config('lock_timeout', '0', true) as patient_again
from (
    select duly.tenant_room($1::text, $2::bigint, $3::bigint) as room
    from (select set_config('lock_timeout', $4::text, true) offset 0) as hasty
    offset 0
) asked
