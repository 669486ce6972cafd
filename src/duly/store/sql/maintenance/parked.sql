-- Parked jobs that may be tried again, by id, one page; `ours`: the job was not changed since it was parked.
--   $1 last job_id of the page before  $2 page size
select p.job_id, j.kind, j.schedule, j.timezone, j.start_at, j.end_at, j.policy, j.created_at, p.version,
    j.version = p.version and j.status = 'paused' as ours, duly.dealt_with_until(p.job_id) as dealt_with_until
from duly.parked p
cross join lateral (
    select version, status, kind, schedule, timezone, start_at, end_at, policy, created_at
    from duly.jobs
    where job_id = p.job_id
    limit 1
) j
where p.job_id > $1
    and (p.retry_at is null or p.retry_at <= duly.now() or j.version <> p.version or j.status <> 'paused')
order by p.job_id
limit $2
