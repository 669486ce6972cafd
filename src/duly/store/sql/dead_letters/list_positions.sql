-- Lists dead letters of a tenant, newest first, one page: only their positions; dead_letters/page.sql reads the
-- letters.
--   $1 tenant  $2 job_id  $3 name  $4 queue  $5 handler  $6 error type  $7 buried from  $8 buried before; null: any
--   $9, $10, $11 buried_at, job_id and scheduled_at of the last letter of the page before, or null  $12 page size
--   $13 maximum number of letters to read
-- `stop`: the last letter that was read, unless that was the end; the next page continues after it.
select buried_at, job_id, scheduled_at, matches, number = $13 as stop
from (
    select d.buried_at, d.job_id, d.scheduled_at,
        row_number() over (order by d.buried_at desc, d.job_id desc, d.scheduled_at desc) as number,
        ($2::uuid is null or d.job_id = $2) and ($3::text is null or d.name = $3) and ($4::text is null or d.queue = $4)
            and ($5::text is null or d.handler = $5) and ($6::text is null or d.error ->> 'type' = $6) as matches
    from (
        select buried_at, job_id, scheduled_at, name, queue, handler, error
        from duly.dead_letters
        where tenant = $1 and (buried_at, job_id, scheduled_at) < (
                coalesce($9::timestamptz, 'infinity'), coalesce($10::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'),
                coalesce($11::timestamptz, 'infinity')
            )
            and buried_at >= coalesce($7::timestamptz, '-infinity') and buried_at < coalesce($8::timestamptz, 'infinity')
        order by buried_at desc, job_id desc, scheduled_at desc
        limit $13
    ) d
) walked
where matches or number = $13
order by buried_at desc, job_id desc, scheduled_at desc
limit $12
