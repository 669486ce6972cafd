-- Notes a job whose policy is about to have alerts.   $1 job_id
insert into duly.alerting (job_id) values ($1) on conflict (job_id) do update set since = excluded.since
