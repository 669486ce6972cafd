-- As jobs/list_of_tenant.sql, for one stored status. An ended job with an unfinished run is shown as active too;
-- jobs/list_live.sql lists those.
--   $1 tenant  $2 status  $3 queue  $4 name  $5 label as JSON  $6 last job_id of the page before  $7 page size
--   $8 maximum number of rows to read
-- `stop`: the last row that was read, unless that was the end; the next page continues below it.
select job_id, matches, number = $8 as stop
from (
    select j.job_id, row_number() over (order by j.job_id desc) as number,
        ($3::text is null or j.queue = $3) and ($4::text is null or j.name = $4)
            and ($5::text is null or j.labels @> $5::jsonb)
            and ($2::text <> 'completed' or (
                select shown_status from duly.job_status s where s.job_id = j.job_id
            ) = 'completed') as matches
    from (
        select job_id, tenant, status, queue, name, labels
        from duly.jobs
        where tenant = $1 and tenant <> 'default' and status = case $2::text when 'completed' then 'ended' else $2 end
            and job_id < coalesce($6::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
        order by job_id desc
        limit $8
    ) j
) walked
where matches or number = $8
order by job_id desc
limit $7
