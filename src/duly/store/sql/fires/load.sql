-- What falls due in these shards up to a moment, a page at a time.
--   $1 shard  $2 horizon  $3, $4 the last row of the page before  $5 page size
select job_id, next_run_at
from duly.jobs
where shard = $1 and next_run_at is not null and next_run_at <= $2
    and (next_run_at, job_id) > ($3::timestamptz, $4::uuid)
order by shard, next_run_at, job_id
limit $5
