-- Late occurrences of one job that still wait to run.   $1 job_id
select first_at, last_at, count from duly.catch_ups where job_id = $1 order by last_at
