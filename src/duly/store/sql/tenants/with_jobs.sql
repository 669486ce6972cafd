-- Tenants that have jobs, other than one, for people: by one descent of jobs_by_status each. The default tenant, which is
-- not in that index, is among them if it has one of the newest jobs.
--   $1 tenant to leave out  $2 maximum number of tenants  $3 maximum number of jobs to read
with recursive named (tenant, number) as (
    (select j.tenant, 1 from duly.jobs j where j.tenant <> 'default' order by j.tenant limit 1)
    union all
    select next.tenant, n.number + 1
    from named n
    cross join lateral (
        select j.tenant from duly.jobs j where j.tenant <> 'default' and j.tenant > n.tenant order by j.tenant limit 1
    ) next
    where n.number <= $2::int
)
select tenant
from (
    select 'default' as tenant, 0 as number
    where exists (
        select from (select j.tenant from duly.jobs j order by j.job_id desc limit $3) newest
        where newest.tenant = 'default'
    )
    union all
    select tenant, number from named
) found
where tenant <> $1
order by number
limit $2
