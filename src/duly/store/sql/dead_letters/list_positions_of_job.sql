-- As dead_letters/list_positions.sql, for one job, by primary key. `crowded`: the job has more letters than may be
-- read, and none is returned.
--   $1 tenant  $2 job_id  $3 name  $4 queue  $5 handler  $6 error type  $7 buried from  $8 buried before; null: any
--   $9, $10, $11 buried_at, job_id and scheduled_at of the last letter of the page before, or null  $12 page size
--   $13 maximum number of letters to read
with of_job as materialized (
    select buried_at, job_id, scheduled_at, tenant, name, queue, handler, error
    from duly.dead_letters
    where job_id = $2::uuid
    limit $13 + 1
)
select counted.crowded, listed.buried_at, listed.job_id, listed.scheduled_at, true as matches, false as stop
from (select count(*) > $13 as crowded from of_job) counted
left join lateral (
    select d.buried_at, d.job_id, d.scheduled_at
    from of_job d
    where d.tenant = $1 and ($3::text is null or d.name = $3) and ($4::text is null or d.queue = $4)
        and ($5::text is null or d.handler = $5) and ($6::text is null or d.error ->> 'type' = $6)
        and ($7::timestamptz is null or d.buried_at >= $7) and ($8::timestamptz is null or d.buried_at < $8)
        and ($9::timestamptz is null or (d.buried_at, d.job_id, d.scheduled_at) < ($9, $10::uuid, $11::timestamptz))
    order by d.buried_at desc, d.job_id desc, d.scheduled_at desc
    limit $12
) listed on not counted.crowded
order by listed.buried_at desc, listed.job_id desc, listed.scheduled_at desc
