-- Takes back runs that were fired ahead of time: no worker can have started them. If the clock has gone back, a run due
-- later than now may already have started, or may be of another kind (triggered, rescued): those stay.
--   $1 job_ids, locked earlier in this transaction (jobs/lock.sql), so that no fire adds more
delete from duly.runs
where job_id = any ($1::uuid[]) and scheduled_at > duly.now() and state = 'queued'
    and fired_at < scheduled_at and run_at = scheduled_at and attempt = 0
returning job_id, scheduled_at
