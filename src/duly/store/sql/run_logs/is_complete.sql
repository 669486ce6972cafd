-- Whether a run has ended and its log is complete.   $1 job_id  $2 scheduled_at  $3 seconds to wait for the last lines
-- A worker writes them a moment after the outcome. One that was killed writes no more, and a silent run has none.
select h.claim_id is null
    or h.finished_at < duly.now() - make_interval(secs => $3)
    or exists (
        select from duly.run_logs l
        where l.job_id = h.job_id and l.scheduled_at = h.scheduled_at and l.claim_id = h.claim_id and l.ended
    ) as complete
from duly.history h
where h.job_id = $1 and h.scheduled_at = $2
