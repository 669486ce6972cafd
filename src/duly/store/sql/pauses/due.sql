-- Jobs whose pause is to end now, one page; `ours`: the pause is still in force.   $1 page size
select p.job_id, j.kind, j.schedule, j.timezone, j.start_at, j.end_at, j.policy, j.created_at, p.change_id, j.version,
    j.last_run_at, duly.dealt_with_until(p.job_id) as dealt_with_until,
    j.status = 'paused' and not exists (
        select from duly.job_changes c
        where c.job_id = p.job_id and c.change_id > p.change_id
            and c.what in ('paused', 'parked', 'resumed', 'unparked', 'cancelled')
    ) as ours
from duly.pauses p
cross join lateral (
    select kind, schedule, timezone, start_at, end_at, policy, created_at, version, status, last_run_at
    from duly.jobs
    where job_id = p.job_id
    limit 1
) j
where p.until <= duly.now()
order by p.until
limit $1
