-- Locks those of these jobs that no other transaction has locked, for services that must not wait. (Operations that a
-- user requested use jobs/lock.sql and wait.)   $1 job_ids
select job_id
from duly.jobs
where job_id = any ($1::uuid[])
order by job_id
for no key update skip locked
