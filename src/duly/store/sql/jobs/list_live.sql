-- Lists ended jobs of a tenant that are shown as active because they have an unfinished run, newest first. It starts
-- from the runs and not from the jobs.
--   $1 tenant  $2 queue  $3 name  $4 label as JSON  $5 last job_id of the page before  $6 page size
--   $7 maximum number of runs to read
-- `stop`: there may be more below this id.
with asked as materialized (
    select coalesce($5::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff') as before
),
queued as materialized (
    select job_id from duly.runs where job_id < (select before from asked) order by job_id desc limit $7
),
late as materialized (
    select job_id from duly.catch_ups where job_id < (select before from asked) order by job_id desc limit $7
),
running as materialized (
    select job_id
    from (select duly.claimed_jobs() as job_id) claimed
    where job_id < (select before from asked)
    order by job_id desc
    limit $7
),
stopped as materialized (
    select greatest(
        (array(select job_id from queued))[$7], (array(select job_id from late))[$7], (array(select job_id from running))[$7]
    ) as at
)
select stopped.at as stop, array(
    select j.job_id
    from (select job_id from queued union select job_id from late union select job_id from running) live
    join duly.jobs j on j.job_id = live.job_id
    where j.tenant = $1 and j.status = 'ended' and (stopped.at is null or j.job_id >= stopped.at)
        and ($2::text is null or j.queue = $2) and ($3::text is null or j.name = $3)
        and ($4::text is null or j.labels @> $4::jsonb)
        and (select shown_status from duly.job_status s where s.job_id = j.job_id) = 'active'
    order by j.job_id desc
    limit $6
) as job_ids
from stopped
