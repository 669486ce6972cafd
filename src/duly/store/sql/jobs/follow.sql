-- Moves runs of a job to the queue and priority that it now has, after jobs/change.sql has committed: a run that came
-- back to the queue (a retry, a rescue) during the change saw the job as it was before.   $1 job_id
with followed as (
    update duly.runs r
    set queue = j.queue, priority = j.priority, flags = r.flags | line.mark
    from duly.jobs j
    cross join duly.mark_of_line($1) as line (mark)
    where r.job_id = $1 and j.job_id = $1
        and ((r.queue, r.priority) <> (j.queue, j.priority) or r.flags & line.mark <> line.mark)
    returning r.queue
)
select count(pg_notify('duly_work', queue)::text) as notified from (select distinct queue from followed) q
