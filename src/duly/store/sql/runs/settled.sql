-- Reads those of these runs that history records under these very claims. Asked after an answer was lost: a completion
-- that found no claim may be the second sending of one that succeeded.
--   $1 claim_ids  $2 job_ids  $3 scheduled_ats
select asked.claim_id, asked.job_id, asked.scheduled_at
from unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) as asked (claim_id, job_id, scheduled_at)
join duly.history h
    on h.job_id = asked.job_id and h.scheduled_at = asked.scheduled_at and h.claim_id = asked.claim_id
