-- The roles that may call duly.submit for a tenant.
select role::text as role, tenant, commands, created_at from duly.submitters order by role
