-- The job already is what the application's code declares, by a manual change: only the code's fingerprint is new.
--   $1 job_id  $2 version it was read with  $3 fingerprint of what the code declares
update duly.jobs set fingerprint = $3 where job_id = $1 and version = $2 returning job_id
