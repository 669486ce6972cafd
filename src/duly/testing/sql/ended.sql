-- Runs that ended at $1 or later, in the order of their ends.
select h.job_id, h.scheduled_at, h.finished_at, j.tenant
from duly.history h
join duly.jobs j on j.job_id = h.job_id
where h.finished_at >= $1
order by h.finished_at, h.scheduled_at, h.job_id
