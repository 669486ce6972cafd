-- Dead letters, the newest first, a page at a time; `workers`: the names of those that tried them, by id.
--   $1 tenant  $2 job_id  $3 name  $4 queue  $5 handler  $6 error type  $7 buried from  $8 buried before; null: any
--   $9, $10, $11 buried_at, job_id and scheduled_at of the last one of the page before, or null  $12 page size
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
where d.tenant = $1
    and ($2::uuid is null or d.job_id = $2) and ($3::text is null or d.name = $3) and ($4::text is null or d.queue = $4)
    and ($5::text is null or d.handler = $5) and ($6::text is null or d.error ->> 'type' = $6)
    and ($7::timestamptz is null or d.buried_at >= $7) and ($8::timestamptz is null or d.buried_at < $8)
    and ($9::timestamptz is null or (d.buried_at, d.job_id, d.scheduled_at) < ($9, $10::uuid, $11::timestamptz))
order by d.buried_at desc, d.job_id desc, d.scheduled_at desc
limit $12
