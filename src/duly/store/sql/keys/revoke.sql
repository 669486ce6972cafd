-- Revokes a key; the first revocation's time stays.   $1 key_id  $2 only of this tenant, or null
update duly.api_keys
set revoked_at = coalesce(revoked_at, duly.now())
where key_id = $1 and ($2::text is null or tenant = $2)
returning key_id, tenant, role, name, created_at, last_used_at, expires_at, revoked_at
