-- Creates an API key.   $1 key_id  $2 hash  $3 tenant  $4 role  $5 name  $6 seconds until it expires, or null
--   $7 who acts (`Actor.note`)
with created as (
    insert into duly.api_keys (key_id, hash, tenant, role, name, created_at, expires_at)
    select $1, $2, $3, $4, $5, clock.now, clock.now + make_interval(secs => $6::float8)
    from (select duly.now() as now) clock
    returning key_id, tenant, role, name, created_at, last_used_at, expires_at, revoked_at
)
-- audited:
, audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select created_at, tenant, $7::jsonb -> 'who', 'create', 'key', key_id, null::uuid, null::jsonb,
        jsonb_build_object('role', role, 'name', name, 'expires_at', expires_at), $7::jsonb ->> 'reason'
    from created
)
-- end audited
select key_id, tenant, role, name, created_at, last_used_at, expires_at, revoked_at from created
