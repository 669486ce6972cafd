-- Take back what was fired ahead of its time: no worker can have it before that. Where the clock has gone back, a run that
-- is due later than now may have begun already, or be of another kind (by hand, rescued): those stay.
--   $1 job_ids, locked earlier in this transaction (jobs/lock.sql), so that no fire puts more there
delete from duly.runs
where job_id = any ($1::uuid[]) and scheduled_at > duly.now() and state = 'queued'
    and fired_at < scheduled_at and run_at = scheduled_at and attempt = 0
returning job_id, scheduled_at
