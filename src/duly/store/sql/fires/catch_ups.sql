-- The catch-ups of these shards to serve next, with the fields needed to compute their occurrences. The one served
-- longest ago comes first, so that neither a long outage nor a busy job holds up the others.
--   $1 shards  $2 limit  $3 job_ids to skip
select c.job_id, j.kind, j.schedule, j.timezone, j.start_at, j.end_at, j.policy, j.created_at,
    c.shard, c.first_at, c.last_at, c.count, j.status
from duly.catch_ups c
cross join lateral (
    select *, exists (select from duly.parked p where p.job_id = job.job_id and p.version = job.version) as parked
    from duly.jobs job
    where job.job_id = c.job_id
    limit 1
) j
where c.shard = any ($1::smallint[])
    -- A job with several outages catches up with them one by one, oldest first.
    and not exists (select from duly.catch_ups older where older.job_id = c.job_id and older.last_at < c.last_at)
    -- The occurrences of a parked job wait until the job continues.
    and not j.parked
    and c.job_id <> all ($3::uuid[])
order by c.served_at
limit $2
