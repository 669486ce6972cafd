-- Declared jobs of a tenant that are cancelled, or no longer declared and yet active.   $1 tenant  $2 limit
select d.key, d.owner, d.deploy, d.job_id, j.name, j.status, d.undeclared_at,
    exists (
        select from duly.nodes n
        where n.kind = 'worker' and n.lease_until > duly.now() and n.info -> 'app' -> 'declares' ? d.key
    ) as declared
from duly.declarations d
join duly.jobs j on j.job_id = d.job_id and j.tenant = d.tenant
where d.tenant = $1 and d.renamed_to is null
    and (j.status = 'cancelled' or (d.undeclared_at is not null and j.status = 'active'))
order by d.key
limit $2
