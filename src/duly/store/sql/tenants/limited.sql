-- Those of these tenants that have a limit of their own.   $1 tenants
select t.tenant from duly.tenants t where t.tenant = any ($1::text[]) and t.max_jobs is not null
