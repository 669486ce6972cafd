-- Stores the settings that duly.submit obeys.   $1 tenant_max_jobs  $2 payload_max_bytes
-- While there was no default limit, the jobs of tenants without a limit of their own took no slots: they are counted
-- anew.
with before as materialized (
    select tenant_max_jobs, payload_max_bytes
    from duly.store
    where (tenant_max_jobs, payload_max_bytes) is distinct from ($1::bigint, $2::bigint)
),
written as (
    update duly.store s
    set tenant_max_jobs = $1, payload_max_bytes = $2
    from before
    returning before.tenant_max_jobs
),
uncounted as (
    update duly.tenants t
    set jobs = null
    from written
    where t.max_jobs is null and t.jobs is not null and written.tenant_max_jobs is null and $1::bigint is not null
)
select from written
