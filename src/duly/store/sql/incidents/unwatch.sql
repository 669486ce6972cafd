-- Forgets jobs that have nothing to watch. One noted a moment ago may be getting its alerts just now.   $1 job ids
delete from duly.alerting where job_id = any ($1) and since < clock_timestamp() - interval '10 minutes' returning job_id
