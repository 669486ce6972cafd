-- Take back what was fired ahead of its time: no worker can have it before that.
--   $1 job_ids, locked earlier in this transaction (jobs/lock.sql), so that no fire puts more there
delete from duly.runs
where job_id = any ($1::uuid[]) and scheduled_at > duly.now() and state = 'queued'
returning job_id, scheduled_at
