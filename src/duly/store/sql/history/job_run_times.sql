-- Which live and ended runs one job has, newest first, a page at a time; history/runs_page.sql has the rest of them.
--   $1 job_id  $2 before this scheduled_at (exclusive)  $3 page size
select run.scheduled_at
from (
    (
        select h.scheduled_at
        from duly.history h
        where h.job_id = $1 and h.scheduled_at < $2
        order by h.scheduled_at desc
        limit $3
    )
    union
    (
        select r.scheduled_at
        from duly.runs r
        where r.job_id = $1 and r.scheduled_at < $2
        order by r.scheduled_at desc
        limit $3
    )
    union
    (
        select one.scheduled_at
        from duly.live_claims c
        cross join unnest(c.job_ids, c.scheduled_ats) with ordinality as one (job_id, scheduled_at, ordinal)
        where one.job_id = $1 and one.scheduled_at < $2 and not (one.ordinal = any (c.released))
    )
) run
order by run.scheduled_at desc
limit $3
