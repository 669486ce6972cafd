-- Reads the records of one job's occurrences in a range of time, live and ended, oldest first, with the node that fired
-- each.
--   $1 job_id  $2 first scheduled_at  $3 last scheduled_at  $4 limit  $5 shard
-- The record before the range comes first: if it stands for missed occurrences, it may reach into the range. Only
-- triggered runs and occurrences that DST skipped lie inside such a stretch, so those are passed over.
select run.*, coalesce(n.name, run.worker_id::text) as worker, leader.name as fired_by
from (
    (
        select h.job_id, h.scheduled_at, h.status, h.attempt, h.flags, h.fired_at, h.epoch, h.started_at,
            h.finished_at, h.worker_id, h.claim_id, h.result, h.error, h.note, null::timestamptz as run_at
        from duly.history h
        where h.job_id = $1 and h.scheduled_at < $2 and not duly.is_triggered(h.flags) and h.note ->> 'reason' is distinct from 'dst_gap'
        order by h.scheduled_at desc
        limit 1
    )
    union all
    (
        select h.job_id, h.scheduled_at, h.status, h.attempt, h.flags, h.fired_at, h.epoch, h.started_at,
            h.finished_at, h.worker_id, h.claim_id, h.result, h.error, h.note, null
        from duly.history h
        where h.job_id = $1 and h.scheduled_at between $2 and $3
        order by h.scheduled_at
        limit $4
    )
    union all
    (
        select r.job_id, r.scheduled_at, r.state, r.attempt, r.flags, r.fired_at, r.epoch, null, null, null, null,
            null, null, null, r.run_at
        from duly.runs r
        where r.job_id = $1 and r.scheduled_at between $2 and $3
        order by r.scheduled_at
        limit $4
    )
    union all
    (
        select one.job_id, one.scheduled_at, 'running', one.attempt, one.flags, one.fired_at, one.epoch, one.claimed_at,
            null, one.worker_id, one.claim_id, null, null, null, null
        from duly.held_runs one
        where one.job_id = $1 and one.scheduled_at between $2 and $3
            and not exists (
                select from duly.history h where h.job_id = one.job_id and h.scheduled_at = one.scheduled_at
            )
    )
) run
left join duly.nodes n on n.node_id = run.worker_id
left join duly.terms t on t.shard = $5 and t.epoch = run.epoch
left join duly.nodes leader on leader.node_id = t.node_id
order by scheduled_at
limit $4 + 1
