-- The latest occurrence of a job that was fired, skipped, missed or put off.   $1 job_id
select duly.dealt_with_until($1) as until
