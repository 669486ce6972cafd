-- How the latest runs of jobs have ended.   $1 job ids  $2 from which occurrence on  $3 failed attempts to count per job
--   succeeded_at: the end of the last success   failures: failed attempts after it   error: the type of the last one's
--   status, scheduled_at, finished_at: of the latest occurrence that is over
select asked.job_id, good.finished_at as succeeded_at, bad.failures, bad.error, bad.failed_of,
    latest.status, latest.scheduled_at, latest.finished_at, latest.reason
from unnest($1::uuid[]) as asked (job_id)
left join lateral (
    select h.scheduled_at, h.status, h.finished_at, h.note ->> 'reason' as reason
    from duly.history h
    where h.job_id = asked.job_id and h.scheduled_at >= $2 order by h.scheduled_at desc limit 1
) latest on true
left join lateral (
    select h.finished_at
    from (
        select h.finished_at, h.status
        from duly.history h where h.job_id = asked.job_id and h.scheduled_at >= $2 order by h.scheduled_at desc limit 1000
    ) h
    where h.status = 'succeeded' limit 1
) good on true
left join lateral (
    select count(*)::int as failures, (array_agg(a.type order by a.finished_at desc))[1] as error,
        (array_agg(a.scheduled_at order by a.finished_at desc))[1] as failed_of
    from (
        select a.finished_at, a.scheduled_at, a.error ->> 'type' as type
        from duly.attempts a where a.job_id = asked.job_id and a.scheduled_at >= $2 order by a.scheduled_at desc limit $3
    ) a
    where good.finished_at is null or a.finished_at > good.finished_at
) bad on true
