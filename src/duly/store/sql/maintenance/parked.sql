-- Jobs that are parked, by id, a page at a time; `ours` says that nobody has touched them since.
--   $1 last job_id of the page before  $2 page size
select p.job_id, p.version, j.version = p.version and j.status = 'paused' as ours, j.kind, j.schedule, j.timezone,
    j.start_at, j.end_at, j.policy, j.created_at
from duly.parked p
cross join lateral (select * from duly.jobs where job_id = p.job_id limit 1) j
where p.job_id > $1
order by p.job_id
limit $2
