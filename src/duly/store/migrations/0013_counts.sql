-- How many runs wait for their retry is asked again and again by people who watch. Without this, a million queued runs are
-- read to find that there is none. Only a run that is retried pays for it.
create index runs_retrying on duly.runs (job_id, scheduled_at) where state = 'retrying';
