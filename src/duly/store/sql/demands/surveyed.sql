-- What active jobs demand of a worker, as the survey has found it.   $1 maximum number of demands
-- A walk that goes on has counted a part of the jobs; the walk before has counted all.
select d.tenant, d.queue, d.kind, d.handler,
    greatest(d.jobs, case when d.walk = s.walk then d.before else 0 end) as jobs,
    d.walk = s.walk and d.before = 0 as at_least,
    d.job_id, j.name as job_name
from duly.survey s
cross join duly.demands d
left join duly.jobs j on j.job_id = d.job_id
where d.walk >= s.walk - 1
order by d.tenant, d.queue, d.kind, d.handler
limit $1
