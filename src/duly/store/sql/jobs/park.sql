-- A leader cannot plan this job (its time zone is gone, its schedule cannot be read any more): it is paused with the
-- reason, the shard goes on. Fenced like a fire.   $1 shard  $2 epoch  $3 job_ids  $4 expected next_run_at  $5 reasons
with term as materialized (
    select epoch from duly.shards where shard = $1 and epoch = $2 for share
)
update duly.jobs j
set status = 'paused', next_run_at = null, status_reason = f.reason, updated_at = duly.now(), version = version + 1
from unnest($3::uuid[], $4::timestamptz[], $5::text[]) as f (job_id, expected, reason)
where j.job_id = f.job_id and j.next_run_at = f.expected and exists (select from term)
returning j.job_id
