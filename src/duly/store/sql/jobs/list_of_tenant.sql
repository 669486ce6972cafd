-- As jobs/list.sql, for a tenant other than the default one: saying so lets PostgreSQL use the index jobs_by_status, in
-- which each status is a list of its own.
--   $1 tenant  $2 status  $3 queue  $4 name  $5 label as JSON  $6 last job_id of the page before  $7 page size
--   $8 maximum number of rows to read
-- `stop`: the last row that was read, unless that was the end; the next page continues below it.
select job_id, matches, number = $8 as stop
from (
    select j.job_id, row_number() over (order by j.job_id desc) as number,
        case
            when not (($3::text is null or j.queue = $3) and ($4::text is null or j.name = $4)
            and ($5::text is null or j.labels @> $5::jsonb)) then false
            when $2::text is null then true
            when $2 = 'completed' then j.status = 'ended'
                and (select shown_status from duly.job_status s where s.job_id = j.job_id) = 'completed'
            when $2 = 'active' and j.status = 'ended' then (
                exists (select from duly.runs r where r.job_id = j.job_id)
                or exists (select from duly.catch_ups c where c.job_id = j.job_id)
                or j.job_id in (select duly.claimed_jobs())
            ) and (select shown_status from duly.job_status s where s.job_id = j.job_id) = 'active'
            else j.status = $2
        end as matches
    from (
        select job_id, tenant, status, queue, name, labels
        from (
            (
                select job_id, tenant, status, queue, name, labels
                from duly.jobs
                where tenant = $1 and tenant <> 'default' and status = 'active'
                    and job_id < coalesce($6::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
                order by job_id desc
                limit $8
            )
            union all
            (
                select job_id, tenant, status, queue, name, labels
                from duly.jobs
                where tenant = $1 and tenant <> 'default' and status = 'paused'
                    and job_id < coalesce($6::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
                order by job_id desc
                limit $8
            )
            union all
            (
                select job_id, tenant, status, queue, name, labels
                from duly.jobs
                where tenant = $1 and tenant <> 'default' and status = 'ended'
                    and job_id < coalesce($6::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
                order by job_id desc
                limit $8
            )
            union all
            (
                select job_id, tenant, status, queue, name, labels
                from duly.jobs
                where tenant = $1 and tenant <> 'default' and status = 'cancelled'
                    and job_id < coalesce($6::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
                order by job_id desc
                limit $8
            )
        ) any_status
        order by job_id desc
        limit $8
    ) j
) walked
where matches or number = $8
order by job_id desc
limit $7
