-- Creates an API key.   $1 key_id  $2 hash  $3 tenant  $4 role  $5 name  $6 seconds until it expires, or null
insert into duly.api_keys (key_id, hash, tenant, role, name, created_at, expires_at)
select $1, $2, $3, $4, $5, clock.now, clock.now + make_interval(secs => $6::float8)
from (select duly.now() as now) clock
returning key_id, tenant, role, name, created_at, last_used_at, expires_at, revoked_at
