-- Up to when occurrences of a job have been dealt with.   $1 job_id
select duly.dealt_with_until($1) as until
