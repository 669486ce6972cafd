-- The progress of these running runs.   $1 claim_ids  $2 job_ids  $3 scheduled_ats
select asked.job_id, asked.scheduled_at, p.fraction, p.note, p.at
from unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) as asked (claim_id, job_id, scheduled_at)
join duly.claims c on c.claim_id = asked.claim_id
cross join unnest(c.job_ids, c.scheduled_ats) with ordinality as one (job_id, scheduled_at, ordinal)
join duly.progress p on p.claim_id = c.claim_id and p.ordinal = one.ordinal
where one.job_id = asked.job_id and one.scheduled_at = asked.scheduled_at
