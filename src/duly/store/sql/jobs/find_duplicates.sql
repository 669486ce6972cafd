-- The jobs behind dedupe keys, with the fingerprint of their content.   $1 tenants  $2 dedupe_keys
select j.tenant, j.dedupe_key, j.job_id, j.fingerprint
from unnest($1::text[], $2::text[]) as asked (tenant, dedupe_key)
join duly.jobs j on j.tenant operator(pg_catalog.=) asked.tenant and j.dedupe_key operator(pg_catalog.=) asked.dedupe_key
