-- The last parts of a run's log, the last one first.   $1 job_id  $2 scheduled_at  $3 attempt, or null for all  $4 limit
select claim_id, attempt, lines
from duly.run_logs
where job_id = $1 and scheduled_at = $2 and ($3::int is null or attempt = $3)
order by claim_id desc, part desc
limit $4
