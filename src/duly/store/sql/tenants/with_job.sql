-- Tenants other than one that have a job with an id in a range, or with a name among the newest jobs, for people.
--   $1, $2 lowest and highest id, or null  $3 name  $4 tenant to leave out  $5 maximum number of jobs to read for each
--   $6 maximum number of tenants
select tenant, bool_or(by_id) as by_id
from (
    select near.tenant, true as by_id
    from (
        select j.tenant from duly.jobs j where j.job_id between $1::uuid and $2::uuid order by j.job_id desc limit $5
    ) near
    union all
    select newest.tenant, false
    from (select j.tenant, j.name from duly.jobs j order by j.job_id desc limit $5) newest
    where newest.name = $3
) found
where tenant <> $4
group by tenant
order by by_id desc, tenant
limit $6
