-- All API keys, newest first.   $1 only of this tenant, or null
select key_id, tenant, role, name, created_at, last_used_at, expires_at, revoked_at
from duly.api_keys
where $1::text is null or tenant = $1
order by created_at desc, key_id
