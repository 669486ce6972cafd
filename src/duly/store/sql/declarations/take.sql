-- Locks the declaration of a key for a deploy until the transaction ends, and notes that the deploy has declared it.
--   $1 tenant  $2 key  $3 owner  $4 deploy  $5 its rank  $6 all keys that the deploy declares
-- No row: a newer deploy has declared it, or a live worker of another application declares it.
insert into duly.declarations as d (tenant, key, owner, deploy, rank, beside, declared_at)
values ($1, $2, $3, $4, $5, $6::text[], duly.now())
on conflict (tenant, key) do update
set owner = excluded.owner, deploy = excluded.deploy, rank = excluded.rank, beside = excluded.beside,
    declared_at = excluded.declared_at
where d.rank <= excluded.rank
    and (d.owner in ('', excluded.owner) or not exists (
        select from duly.nodes n
        where n.kind = 'worker' and n.lease_until > duly.now()
            and n.info -> 'app' ->> 'name' = d.owner and n.info -> 'app' -> 'declares' ? d.key
    ))
returning job_id, renamed_to, reason
