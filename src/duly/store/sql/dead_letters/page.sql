-- Reads dead letters by their keys, in that order, until a number of bytes is reached: the letter that exceeds it is
-- the last, and there is always one. `workers`: the names of the workers that tried them, by id.
--   $1 job_ids  $2 scheduled_ats  $3 bytes  $4 with payloads?  $5 tenant
-- One letter after the other, so that rows which are not sent are not read.
with recursive page as (
    select 0 as number, 0::bigint as bytes,
        null::uuid as job_id, null::timestamptz as scheduled_at, null::timestamptz as buried_at, null::smallint as
        attempt, null::text as tenant, null::text as name, null::text as queue, null::text as handler, null::text as
        target, null::text as payload, null::text as payload_ref, null::text as error, null::text as attempts,
        null::text as secret_fields, null::text as workers
    union all
    select page.number + 1,
        page.bytes + 1000 + coalesce(octet_length(d.payload), 0) + coalesce(octet_length(d.target), 0)
            + coalesce(octet_length(d.error), 0) + coalesce(octet_length(d.attempts), 0)
            + coalesce(octet_length(d.payload_ref), 0),
        d.job_id, d.scheduled_at, d.buried_at, d.attempt, d.tenant, d.name, d.queue, d.handler, d.target, d.payload,
        d.payload_ref, d.error, d.attempts, d.secret_fields, d.workers
    from page
    left join lateral (
        select l.job_id, l.scheduled_at, l.buried_at, l.attempt, l.tenant, l.name, l.queue, l.handler,
            l.target::text as target, case when $4::boolean then l.payload::text end as payload, l.payload_ref,
            l.error::text as error, l.attempts::text as attempts, l.secret_fields::text as secret_fields,
            (
                select jsonb_object_agg(n.node_id, n.name)::text
                from duly.nodes n
                where n.node_id = any (array(
                    select (tried.one ->> 'worker_id')::uuid from jsonb_array_elements(l.attempts) as tried (one)
                ))
            ) as workers
        from duly.dead_letters l
        where l.tenant = $5 and l.job_id = ($1::uuid[])[page.number + 1]
            and l.scheduled_at = ($2::timestamptz[])[page.number + 1]
        offset 0
    ) d on true
    where page.number < cardinality($1::uuid[]) and page.bytes < $3::bigint
)
select number, job_id, scheduled_at, buried_at, attempt, tenant, name, queue, handler, target, payload, payload_ref, error,
    attempts, secret_fields, workers
from page
where job_id is not null
order by number
