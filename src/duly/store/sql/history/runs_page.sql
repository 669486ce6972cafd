-- Reads runs of one job, from whichever table has them, in this order, until a number of bytes is reached: the run that
-- exceeds it is the last, and there is always one. Failed attempts count too.
--   $1 job_id  $2 scheduled_ats  $3 bytes
-- One run after the other, so that rows which are not sent are not read: a thousand results may be a quarter of a
-- gigabyte.
with recursive running as materialized (
    select job_id, scheduled_at, attempt, flags, fired_at, epoch, claimed_at, worker_id, claim_id
    from duly.held_runs
    where job_id = $1 and scheduled_at = any ($2::timestamptz[])
),
page as (
    select 0 as number, 0::bigint as bytes,
        null::uuid as job_id, null::timestamptz as scheduled_at, null::text as status, null::smallint as attempt,
        null::smallint as flags, null::timestamptz as fired_at, null::integer as epoch, null::timestamptz as
        started_at, null::timestamptz as finished_at, null::uuid as worker_id, null::uuid as claim_id, null::text as
        result, null::text as error, null::text as note, null::timestamptz as run_at
    union all
    select page.number + 1,
        page.bytes + 1000 + coalesce(octet_length(run.result), 0) + coalesce(octet_length(run.error), 0)
            + coalesce(octet_length(run.note), 0) + coalesce((
                select sum(octet_length(a.error::text) + 200)
                from duly.attempts a
                where run.attempt > 0 and a.job_id = run.job_id and a.scheduled_at = run.scheduled_at
            ), 0)::bigint,
        run.job_id, run.scheduled_at, run.status, run.attempt, run.flags, run.fired_at, run.epoch, run.started_at,
        run.finished_at, run.worker_id, run.claim_id, run.result, run.error, run.note, run.run_at
    from page
    left join lateral (
        select h.job_id, h.scheduled_at, h.status, h.attempt, h.flags, h.fired_at, h.epoch, h.started_at, h.finished_at,
            h.worker_id, h.claim_id, h.result::text as result, h.error::text as error, h.note::text as note,
            null::timestamptz as run_at
        from duly.history h
        where h.job_id = $1 and h.scheduled_at = ($2::timestamptz[])[page.number + 1]
        union all
        select r.job_id, r.scheduled_at, r.state, r.attempt, r.flags, r.fired_at, r.epoch, null, null, null, null, null, null,
            null, r.run_at
        from duly.runs r
        where r.job_id = $1 and r.scheduled_at = ($2::timestamptz[])[page.number + 1]
        union all
        select c.job_id, c.scheduled_at, 'running', c.attempt, c.flags, c.fired_at, c.epoch, c.claimed_at, null,
            c.worker_id, c.claim_id, null, null, null, null
        from running c
        where c.scheduled_at = ($2::timestamptz[])[page.number + 1]
        limit 1
    ) run on true
    where page.number < cardinality($2::timestamptz[]) and page.bytes < $3::bigint
)
select page.*, coalesce(n.name, page.worker_id::text) as worker, job.trace
from page
left join duly.nodes n on n.node_id = page.worker_id
-- On a store without step 0007 the column `trace` below is this one: a job's own would come first.
cross join (select null::text as trace) absent
left join lateral (
    select case when kind = 'once' then trace end as trace
    from duly.jobs
    where job_id = $1
    limit 1
) job on true
where page.job_id is not null
order by page.number
