-- As tenants/free_slots.sql, for Duly's own transactions: another transaction may keep the tenant locked, and the caller is
-- told after a while. Only this lock has so short a timeout.
--   $1 tenant  $2 how many are wanted  $3 the default limit  $4 lock_timeout
select asked.slots, set_config('lock_timeout', '0', true) as patient_again
from (
    select duly.tenant_room($1::text, $2::bigint, $3::bigint) as slots
    from (select set_config('lock_timeout', $4::text, true) offset 0) as hasty
    offset 0
) asked
