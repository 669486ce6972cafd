-- Lock those of these jobs that nobody else has locked, for services that must not wait for one of them: whoever asked
-- for jobs/lock.sql waits, and has a user who waits with them.   $1 job_ids
select job_id
from duly.jobs
where job_id = any ($1::uuid[])
order by job_id
for no key update skip locked
