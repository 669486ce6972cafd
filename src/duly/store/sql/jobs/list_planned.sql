-- Lists jobs of the default tenant with a next occurrence, newest first, where the whole store has at most $7 of those.
--   $1 tenant  $2 queue  $3 name  $4 label as JSON  $5 last job_id of the page before  $6 page size
--   $7 maximum number of rows to read
with planned as materialized (
    select job_id, tenant, queue, name, labels, status from duly.jobs where next_run_at is not null limit $7 + 1
)
select (select count(*) from planned) <= $7 as complete, array(
    select j.job_id
    from planned j
    where j.tenant = $1 and j.status = 'active' and ($2::text is null or j.queue = $2)
        and ($3::text is null or j.name = $3) and ($4::text is null or j.labels @> $4::jsonb)
        and j.job_id < coalesce($5::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    order by j.job_id desc
    limit $6
) as job_ids
