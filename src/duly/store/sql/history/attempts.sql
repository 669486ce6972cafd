-- The failed attempts of these runs.   $1 job_ids  $2 scheduled_ats
select a.job_id, a.scheduled_at, a.attempt, a.started_at, a.finished_at, coalesce(n.name, a.worker_id::text) as worker, a.error
from unnest($1::uuid[], $2::timestamptz[]) as asked (job_id, scheduled_at)
join duly.attempts a on a.job_id = asked.job_id and a.scheduled_at = asked.scheduled_at
left join duly.nodes n on n.node_id = a.worker_id
order by a.job_id, a.scheduled_at, a.attempt, a.finished_at
