-- No more fires until resumed.   $1 job_id  $2 tenant  $3 reason
update duly.jobs
set status = 'paused', next_run_at = null, status_reason = $3, updated_at = duly.now(), version = version + 1
where job_id = $1 and tenant = $2 and status = 'active' and next_run_at is not null
returning *
