-- Jobs that duly.submit has stored and nobody has planned, oldest first. One that is gone, or no longer paused, has no
-- `kind` here: there is nothing left to plan.   $1 page
select u.job_id as newcomer, j.*
from duly.unplanned u
left join duly.jobs j on j.job_id = u.job_id and j.status = 'paused'
order by u.at, u.job_id
limit $1
