-- Declared jobs of a tenant that are cancelled, and those no longer declared: still active, or paused for that reason.
--   $1 tenant  $2 limit
select d.key, d.owner, d.deploy, d.job_id, j.name, j.status, d.undeclared_at,
    exists (
        select from duly.nodes n
        where n.kind = 'worker' and n.lease_until > duly.now() and n.info -> 'app' -> 'declares' ? d.key
    ) as declared
from duly.declarations d
join duly.jobs j on j.job_id = d.job_id and j.tenant = d.tenant
where d.tenant = $1 and d.renamed_to is null
    and (
        j.status = 'cancelled'
        or (d.undeclared_at is not null and (j.status = 'active' or (j.status = 'paused' and j.status_reason = d.reason)))
    )
order by d.key
limit $2
