-- The parts of a run's log that go beyond a line, in order.
--   $1 job_id  $2 scheduled_at  $3 claim of that line  $4 its number  $5 attempt, or null for all  $6 limit
select claim_id, attempt, lines
from duly.run_logs
where job_id = $1 and scheduled_at = $2 and claim_id >= $3
    and (claim_id > $3 or last_line > $4)
    and ($5::int is null or attempt = $5)
order by claim_id, part
limit $6
