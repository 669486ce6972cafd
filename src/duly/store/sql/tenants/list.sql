-- Tenants that something was set for.
select tenant, max_jobs, requests_per_second, created_at, updated_at from duly.tenants order by tenant
