-- A job that was renamed still has the dedupe_key of its old name, which the code now gives to another job.
--   $1 tenant  $2 job_id  $3 its dedupe_key  $4 its new one
update duly.jobs set dedupe_key = $4 where job_id = $2 and tenant = $1 and dedupe_key = $3
