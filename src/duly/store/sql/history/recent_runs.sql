-- The runs that ended last, over all jobs of a tenant, without their results.
--   $1 tenant  $2 limit  $3 maximum number of the store's ended runs to read  $4 the same of jobs per status
-- Thousands of other tenants' runs would hide the tenant's own: then the last run of each of its jobs is read as well,
-- unless it is listed already.
with newest as materialized (
    select h.job_id, h.scheduled_at, h.status, h.attempt, h.flags, h.fired_at, h.epoch, h.started_at, h.finished_at,
        h.worker_id, h.claim_id, h.error, h.note, j.name as job_name
    from (select * from duly.history order by finished_at desc limit $3) h
    join duly.jobs j on j.job_id = h.job_id
    where j.tenant = $1
    order by h.finished_at desc
    limit $2
),
own as (
    select job_id, last_run_at, name
    from (
        (
            select job_id, last_run_at, name
            from duly.jobs
            where tenant = $1 and tenant <> 'default' and status = 'active'
            order by job_id desc
            limit $4
        )
        union all
        (
            select job_id, last_run_at, name
            from duly.jobs
            where tenant = $1 and tenant <> 'default' and status = 'ended'
            order by job_id desc
            limit $4
        )
        union all
        (
            select job_id, last_run_at, name
            from duly.jobs
            where tenant = $1 and tenant <> 'default' and status = 'paused'
            order by job_id desc
            limit $4
        )
        union all
        (
            select job_id, last_run_at, name
            from duly.jobs
            where tenant = $1 and tenant <> 'default' and status = 'cancelled'
            order by job_id desc
            limit $4
        )
    ) any_status
    where (select count(*) from newest) < $2
        and exists (select from duly.history order by finished_at desc offset $3 limit 1)
)
select run.job_id, run.scheduled_at, run.status, run.attempt, run.flags, run.fired_at, run.epoch, run.started_at,
    run.finished_at, run.worker_id, run.claim_id, null::jsonb as result, run.error, run.note,
    null::timestamptz as run_at, run.job_name, n.name as worker
from (
    select * from newest
    union all
    select h.job_id, h.scheduled_at, h.status, h.attempt, h.flags, h.fired_at, h.epoch, h.started_at, h.finished_at,
        h.worker_id, h.claim_id, h.error, h.note, own.name
    from own
    join duly.history h on h.job_id = own.job_id and h.scheduled_at = own.last_run_at
    where (h.job_id, h.scheduled_at) not in (select job_id, scheduled_at from newest)
) run
left join duly.nodes n on n.node_id = run.worker_id
order by run.finished_at desc
limit $2
