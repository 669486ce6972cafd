-- One dead letter; `workers`: the names of the workers that tried it, by id.   $1 tenant  $2 job_id  $3 scheduled_at
select d.job_id, d.scheduled_at, d.buried_at, d.attempt, d.tenant, d.name, d.queue, d.handler, d.target, d.payload,
    d.payload_ref, d.error, d.attempts, d.secret_fields,
    (
        select jsonb_object_agg(n.node_id, n.name)
        from duly.nodes n
        where n.node_id = any (array(
            select (tried.one ->> 'worker_id')::uuid from jsonb_array_elements(d.attempts) as tried (one)
        ))
    ) as workers
from duly.dead_letters d
where d.tenant = $1 and d.job_id = $2 and d.scheduled_at = $3
