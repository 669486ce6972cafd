-- Declarations that no live deploy declares any more: every live worker of the application is of a newer deploy, and
-- there is at least one. Applications without a name are told apart by what they declare: a worker counts if it declares
-- a job that was declared beside this one. A worker that says nothing of declarations is of an older Duly, and may have
-- declared every task that it has.   $1 limit
with clock as materialized (
    select duly.now() as now
),
live as materialized (
    select n.info -> 'app' ->> 'name' as owner, n.info -> 'app' ->> 'deploy' as deploy,
        (n.info -> 'app' ->> 'rank') collate "C" as rank, n.info -> 'app' -> 'declares' as keys, n.info -> 'tasks' as tasks,
        n.info ? 'app' as knows, coalesce(n.info -> 'app' ->> 'tenant', 'default') as tenant
    from duly.nodes n cross join clock
    where n.kind = 'worker' and n.lease_until > clock.now
)
select d.tenant, d.key, d.owner, d.job_id, d.rank, since.deploy as since_deploy, since.rank as since_rank
from duly.declarations d
join duly.jobs j on j.job_id = d.job_id
cross join lateral (
    select l.deploy, l.rank
    from live l
    where l.knows and l.owner = d.owner and l.tenant = d.tenant and (d.owner <> '' or l.keys ?| d.beside)
    order by l.rank
    limit 1
) as since
where d.renamed_to is null and d.undeclared_at is null and since.rank > d.rank
    and not exists (select from live l where l.knows and l.tenant = d.tenant and l.keys ? d.key)
    and not exists (select from live l where not l.knows and l.tasks ? j.handler)
order by d.tenant, d.key
limit $1
