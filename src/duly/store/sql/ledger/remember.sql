-- Stores the keys of runs that this transaction has just recorded under these claims. A run that was refused there has
-- no such history row, so its key is not stored.
--   $1 claim_ids  $2 job_ids  $3 scheduled_ats  $4 keys
insert into duly.ledger (tenant, key, completed_at, job_id, scheduled_at)
select distinct on (j.tenant, ended.key) j.tenant, ended.key, duly.now(), h.job_id, h.scheduled_at
from unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::text[]) as ended (claim_id, job_id, scheduled_at, key)
cross join lateral (
    select job_id, scheduled_at from duly.history
    where job_id = ended.job_id and scheduled_at = ended.scheduled_at and claim_id = ended.claim_id
    limit 1
) h
cross join lateral (select tenant from duly.jobs where job_id = ended.job_id limit 1) j
-- In the same order everywhere: two workers that complete the same keys must not deadlock.
order by j.tenant, ended.key
on conflict (tenant, key) do update
set completed_at = excluded.completed_at, job_id = excluded.job_id, scheduled_at = excluded.scheduled_at
