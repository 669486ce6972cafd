-- What ended last, over all jobs of a tenant.   $1 tenant  $2 limit
select h.job_id, h.scheduled_at, h.status, h.attempt, h.flags, h.fired_at, h.epoch, h.started_at, h.finished_at,
    h.worker_id, h.claim_id, h.result, h.error, h.note, null::timestamptz as run_at, j.name as job_name,
    n.name as worker
from duly.history h
join duly.jobs j on j.job_id = h.job_id
left join duly.nodes n on n.node_id = h.worker_id
where j.tenant = $1
order by h.finished_at desc
limit $2
