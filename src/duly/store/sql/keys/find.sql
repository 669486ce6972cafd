-- The valid ones of these keys, with their tenants' request rates. `worn`: the key's last use should be written again.
--   $1 key_ids  $2 seconds for which a last use counts as fresh
select k.key_id, k.hash, k.tenant, k.role, t.requests_per_second, k.name,
    k.last_used_at is null or k.last_used_at < clock.now - make_interval(secs => $2::float8) as worn
from unnest($1::text[]) as asked (key_id)
join duly.api_keys k on k.key_id = asked.key_id
cross join (select duly.now() as now) clock
left join duly.tenants t on t.tenant = k.tenant
where k.revoked_at is null and (k.expires_at is null or k.expires_at > clock.now)
