-- Live and ended runs of one job, newest first, a page at a time.
--   $1 job_id  $2 before this scheduled_at (exclusive)  $3 page size
select run.*, coalesce(n.name, run.worker_id::text) as worker
from (
    (
        select h.job_id, h.scheduled_at, h.status, h.attempt, h.flags, h.fired_at, h.epoch, h.started_at,
            h.finished_at, h.worker_id, h.claim_id, h.result, h.error, h.note, null::timestamptz as run_at
        from duly.history h
        where h.job_id = $1 and h.scheduled_at < $2
        order by h.scheduled_at desc
        limit $3
    )
    union all
    (
        select r.job_id, r.scheduled_at, r.state, r.attempt, r.flags, r.fired_at, r.epoch, null, null, null, null,
            null, null, null, r.run_at
        from duly.runs r
        where r.job_id = $1 and r.scheduled_at < $2
        order by r.scheduled_at desc
        limit $3
    )
    union all
    (
        select one.job_id, one.scheduled_at, 'running', one.attempt, one.flags, one.fired_at, one.epoch, c.claimed_at,
            null, c.worker_id, c.claim_id, null, null, null, null
        from duly.live_claims c
        cross join unnest(c.job_ids, c.scheduled_ats, c.fired_ats, c.epochs, c.attempts, c.flags)
            with ordinality as one (job_id, scheduled_at, fired_at, epoch, attempt, flags, ordinal)
        where one.job_id = $1 and one.scheduled_at < $2 and not (one.ordinal = any (c.released))
            and not exists (
                select from duly.history h where h.job_id = one.job_id and h.scheduled_at = one.scheduled_at
            )
    )
) run
left join duly.nodes n on n.node_id = run.worker_id
order by scheduled_at desc
limit $3
