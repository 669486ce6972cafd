-- Postpones the rescue of a claim whose run can neither be taken back nor be ended: it is retried later, not every
-- second.
--   $1 claim_id  $2 seconds
update duly.claims
set lease_until = duly.now() + make_interval(secs => $2)
where claim_id = $1
returning job_ids[1] as job_id, scheduled_ats[1] as scheduled_at
