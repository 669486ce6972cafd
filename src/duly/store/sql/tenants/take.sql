-- Takes slots for new jobs.   $1 tenant  $2 job_ids
with taken as (
    insert into duly.tenant_jobs (tenant, job_id)
    select $1::text, job_id from unnest($2::uuid[]) as new (job_id)
    on conflict do nothing
    returning job_id
)
update duly.tenants t
set jobs = t.jobs operator(pg_catalog.+) (select count(*) from taken)
where t.tenant operator(pg_catalog.=) $1::text
returning t.jobs
