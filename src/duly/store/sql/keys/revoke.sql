-- Revokes a key; the first revocation's time stays.   $1 key_id  $2 only of this tenant, or null
--   $3 who acts (`Actor.note`)
with before as materialized (
    select key_id, revoked_at from duly.api_keys where key_id = $1 and ($2::text is null or tenant = $2)
    for no key update
),
revoked as (
    update duly.api_keys k
    set revoked_at = coalesce(k.revoked_at, duly.now())
    from before
    where k.key_id = before.key_id
    returning k.key_id, k.tenant, k.role, k.name, k.created_at, k.last_used_at, k.expires_at, k.revoked_at
)
-- audited:
, audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select revoked.revoked_at, revoked.tenant, $3::jsonb -> 'who', 'revoke', 'key', revoked.key_id, null::uuid, null::jsonb,
        jsonb_build_object('revoked_at', revoked.revoked_at), $3::jsonb ->> 'reason'
    from revoked join before using (key_id)
    where before.revoked_at is null
)
-- end audited
select key_id, tenant, role, name, created_at, last_used_at, expires_at, revoked_at from revoked
