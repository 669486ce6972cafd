-- $1 tenant  $2 job_id  $3 scheduled_at
select * from duly.dead_letters where tenant = $1 and job_id = $2 and scheduled_at = $3
