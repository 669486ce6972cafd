-- Newest first, a page at a time. As jobs/list.sql, of a tenant that is not the default one: that it says so is what
-- lets PostgreSQL use the index of those.
--   $1 tenant  $2 status  $3 queue  $4 name  $5 label as JSON  $6 last job_id of the page before  $7 page size
select job_id, shard, tenant, name, handler, target, payload, payload_ref, kind, schedule, timezone, start_at,
    end_at, max_runs, queue, priority, policy, labels, dedupe_key, status, status_reason, next_run_at, last_run_at,
    run_count, created_at, updated_at, version, shown_status
from duly.job_status
where tenant = $1 and tenant <> 'default'
    and ($2::text is null or shown_status = $2)
    and ($3::text is null or queue = $3)
    and ($4::text is null or name = $4)
    and ($5::text is null or labels @> $5::jsonb)
    and job_id < coalesce($6::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
order by job_id desc
limit $7
