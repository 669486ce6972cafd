-- The number of further jobs a tenant may have; null: any number.
--   $1 tenant  $2 how many are wanted  $3 the default limit
select duly.tenant_room($1::text, $2::bigint, $3::bigint) as slots
