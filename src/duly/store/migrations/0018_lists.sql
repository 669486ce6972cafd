-- Lists that cost what their page costs, however many jobs have ended and whoever else has how many.
--
-- A fire moves a job's row and so costs an entry in each index that the row is in: one more over all active jobs, by tenant
-- or by name, cost a fire a tenth to a third of PostgreSQL's time (measured). So there is no index by name, and none over
-- the active jobs of those who have no tenants. Such lists walk over a bounded number of rows, and their page may end early.

-- In place of duly.jobs_of_tenant: as many entries, and each status of a tenant is a list of its own.
create index jobs_by_status on duly.jobs (tenant, status, job_id) where tenant <> 'default';
drop index duly.jobs_of_tenant;
-- The same of the default tenant, where it costs no fire anything: neither of these is ever fired.
create index jobs_set_aside on duly.jobs (status, job_id) where tenant = 'default' and status in ('paused', 'cancelled');
-- Only jobs that have labels pay for it, and a list by label passes over all others.
create index jobs_labelled on duly.jobs (tenant, job_id) where labels is not null;

-- A tenant's dead letters in the order of their lists and sweeps, without all others'.
create index dead_letters_of_tenant on duly.dead_letters (tenant, buried_at, job_id, scheduled_at);
drop index duly.dead_letters_buried;
