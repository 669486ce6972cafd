-- The ones among these keys that a run has already completed with.
--   $1 job_ids  $2 keys, one per job: a key belongs to its job's tenant  $3 seconds for which a key is kept
select asked.job_id, asked.key
from unnest($1::uuid[], $2::text[]) as asked (job_id, key)
cross join lateral (select tenant from duly.jobs where job_id = asked.job_id limit 1) j
cross join lateral (
    select l.key
    from duly.ledger l
    where l.tenant = j.tenant and l.key = asked.key and l.completed_at > duly.now() - make_interval(secs => $3)
    limit 1
) l
