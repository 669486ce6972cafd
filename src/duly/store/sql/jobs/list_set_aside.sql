-- As jobs/list.sql, for paused or cancelled jobs, which have an index.
--   $1 tenant  $2 status  $3 queue  $4 name  $5 label as JSON  $6 last job_id of the page before  $7 page size
--   $8 maximum number of rows to read
-- `stop`: the last row that was read, unless that was the end; the next page continues below it.
select job_id, matches, number = $8 as stop
from (
    select j.job_id, row_number() over (order by j.job_id desc) as number,
        j.tenant = $1 and ($3::text is null or j.queue = $3) and ($4::text is null or j.name = $4)
            and ($5::text is null or j.labels @> $5::jsonb) as matches
    from (
        select job_id, tenant, status, queue, name, labels
        from duly.jobs
        where tenant = 'default' and status in ('paused', 'cancelled') and status = $2::text
            and job_id < coalesce($6::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
        order by job_id desc
        limit $8
    ) j
) walked
where matches or number = $8
order by job_id desc
limit $7
