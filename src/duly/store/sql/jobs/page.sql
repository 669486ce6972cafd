-- Reads jobs by their ids, in that order, until a number of bytes is reached: the job that exceeds it is the last, and
-- there is always one.
--   $1 job_ids  $2 bytes  $3 with payloads?  $4 tenant
-- One job after the other, so that rows which are not sent are not read: a thousand payloads may be a quarter of a
-- gigabyte.
with recursive page as (
    select 0 as number, 0::bigint as bytes,
        null::uuid as job_id, null::smallint as shard, null::text as tenant, null::text as name,
        null::text as handler, null::text as target, null::text as payload, null::text as payload_ref,
        null::text as kind, null::text as schedule, null::text as timezone, null::timestamptz as start_at,
        null::timestamptz as end_at, null::int as max_runs, null::text as queue, null::smallint as priority,
        null::text as policy, null::text as dedupe_key, null::text as labels, null::text as status,
        null::text as status_reason, null::timestamptz as next_run_at, null::timestamptz as last_run_at,
        null::int as run_count, null::timestamptz as created_at, null::timestamptz as updated_at, null::int as version,
        null::text as shown_status
    union all
    select page.number + 1,
        page.bytes + 1000 + coalesce(octet_length(j.payload), 0) + coalesce(octet_length(j.target), 0)
            + coalesce(octet_length(j.labels), 0) + coalesce(octet_length(j.policy), 0)
            + coalesce(octet_length(j.schedule), 0) + coalesce(octet_length(j.payload_ref), 0),
        j.*
    from page
    left join lateral (
        select s.job_id, s.shard, s.tenant, s.name, s.handler, s.target::text as target,
            case when $3::boolean then s.payload::text end as payload, s.payload_ref, s.kind, s.schedule, s.timezone,
            s.start_at, s.end_at, s.max_runs, s.queue, s.priority, s.policy::text as policy, s.dedupe_key,
            s.labels::text as labels, s.status, s.status_reason, s.next_run_at, s.last_run_at, s.run_count,
            s.created_at, s.updated_at, s.version, s.shown_status
        from duly.job_status s
        where s.job_id = ($1::uuid[])[page.number + 1] and s.tenant = $4
        offset 0
    ) j on true
    where page.number < cardinality($1::uuid[]) and page.bytes < $2::bigint
)
select *
from page
where job_id is not null
order by number
