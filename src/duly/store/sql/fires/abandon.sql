-- Records as missed, with the reason, the late occurrences of jobs that were paused or cancelled before these could
-- run.
--   $1 shard  $2 epoch  $3 job_id  $4 last_at  $5 reason
with term as materialized (
    select epoch from duly.shards where shard = $1 and epoch = $2 for share
),
gone as (
    delete from duly.catch_ups c
    using unnest($3::uuid[], $4::timestamptz[], $5::text[]) as f (job_id, last_at, reason)
    where c.job_id = f.job_id and c.last_at = f.last_at and exists (select from term)
    returning c.job_id, c.first_at, c.last_at, c.count, c.epoch, f.reason
)
insert into duly.history (job_id, scheduled_at, finished_at, epoch, attempt, status, note)
select job_id, first_at, duly.now(), epoch, 0, 'missed',
    jsonb_build_object('reason', reason, 'count', count, 'first', first_at, 'last', last_at)
from gone
on conflict do nothing
returning (note ->> 'count')::int as count
