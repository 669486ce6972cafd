-- Locks jobs, in the same order everywhere, before their line of runs is changed: the statements that follow in this
-- transaction see everything decided before the lock.   $1 job_ids  $2 tenant
select job_id, status
from duly.jobs
where job_id = any ($1::uuid[]) and tenant = $2
order by job_id
for no key update
