-- The outcomes of all occurrences that were due in a window.
--   $1 its beginning  $2 its end  $3 period of the jobs in seconds
-- The due occurrences are computed from the start of each job's period, which no fire ever writes, and not from the
-- scheduler's records: an occurrence that it passed over counts as lost here.
with due as (
    select j.job_id, occurrence.at
    from duly.jobs j
    cross join lateral generate_series(
        j.start_at, $2::timestamptz - interval '1 microsecond', make_interval(secs => $3)
    ) as occurrence (at)
    where j.start_at < $2 and occurrence.at >= $1::timestamptz
)
select count(*) as due,
    count(*) filter (where h.job_id is null) as lost,
    count(*) filter (where h.status = 'succeeded') as succeeded,
    count(*) filter (where h.fired_at < $2) as fired_in_time,
    count(*) filter (where h.finished_at < $2) as ended_in_time,
    percentile_disc(array[0, 0.5, 0.99, 1]) within group (
        order by (extract(epoch from h.started_at - h.scheduled_at) * 1000)::float8
    ) as lags_ms
from due
left join duly.history h on h.job_id = due.job_id and h.scheduled_at = due.at
    and h.scheduled_at >= $1 and h.scheduled_at < $2
