-- The scheduled times of one job's live and ended runs, newest first, one page; history/runs_page.sql reads the runs.
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
        select held.scheduled_at from duly.held_runs held where held.job_id = $1 and held.scheduled_at < $2
    )
) run
order by run.scheduled_at desc
limit $3
