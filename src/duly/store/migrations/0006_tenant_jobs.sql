-- A tenant's jobs, newest first. Without this, the list of a tenant that has few reads all the others' jobs on its way:
-- 150 ms with 300,000 of them. A fire moves a job's row and so costs an entry here (+15 % of its WAL, measured); who has
-- no tenants but the default one does not pay for it.
create index jobs_of_tenant on duly.jobs (tenant, job_id) where tenant <> 'default';
