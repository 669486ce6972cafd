-- The fingerprint of what was last declared for a job.   $1 job_id  $2 tenant
select fingerprint from duly.jobs where job_id = $1 and tenant = $2
