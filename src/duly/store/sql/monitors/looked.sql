-- Notes when to look next, at monitors that this transaction has locked.
--   parallel arrays: $1 tenants  $2 slugs  $3 look_at (null: only after a ping)  $4 alarmed
update duly.monitors m
set look_at = coalesce(seen.look_at, 'infinity'), alarmed = seen.alarmed
from unnest($1::text[], $2::text[], $3::timestamptz[], $4::boolean[]) as seen (tenant, slug, look_at, alarmed)
where m.tenant = seen.tenant and m.slug = seen.slug
returning m.slug
