-- Counts one page of the jobs by what they demand of a worker, and moves the survey on.
--   $1 number of jobs per page  $2 maximum number of demands that are kept
-- The row of the survey is locked first: a second node, or the same statement sent again, goes on with the next page. No
-- job is counted twice in a walk, because the ids of the pages ascend.
with at as materialized (
    select walk, after, coalesce(began_at, duly.now()) as began_at from duly.survey for update
),
page as materialized (
    select job_id, tenant, queue, handler, target, status
    from duly.jobs
    where job_id > (select after from at)
    order by job_id
    limit $1
),
found as materialized (
    select tenant, queue,
        case when target is null then 'task' else handler end as kind,
        case when target is null then handler else coalesce(left(target -> 'argv' ->> 0, 200), '') end as handler,
        count(*) as jobs, (array_agg(job_id))[1] as job_id
    from page
    -- A key that is too long for an index must not stop the survey.
    where status = 'active' and octet_length(tenant) + octet_length(queue) + octet_length(handler) < 1500
    group by 1, 2, 3, 4
),
-- Demands that the walk before has not found any more.
gone as (
    delete from duly.demands d
    using at
    where d.walk < at.walk - 1
        and not exists (
            select from found f
            where f.tenant = d.tenant and f.queue = d.queue and f.kind = d.kind and f.handler = d.handler
        )
),
kept as (
    insert into duly.demands as d (tenant, queue, kind, handler, walk, jobs, before, job_id)
    select f.tenant, f.queue, f.kind, f.handler, at.walk, f.jobs, 0, f.job_id
    from found f
    cross join at
    where exists (
            select from duly.demands d
            where d.tenant = f.tenant and d.queue = f.queue and d.kind = f.kind and d.handler = f.handler
        )
        or (select count(*) from duly.demands) < $2
    order by 1, 2, 3, 4
    on conflict (tenant, queue, kind, handler) do update
    set jobs = excluded.jobs + case when d.walk = excluded.walk then d.jobs else 0 end,
        before = case d.walk when excluded.walk then d.before when excluded.walk - 1 then d.jobs else 0 end,
        walk = excluded.walk, job_id = excluded.job_id
),
last as materialized (
    select count(*) < $1 as is_last, (array_agg(job_id order by job_id desc))[1] as job_id from page
)
update duly.survey s
set walk = at.walk + case when last.is_last then 1 else 0 end,
    after = case when last.is_last then '00000000-0000-0000-0000-000000000000' else last.job_id end,
    began_at = case when last.is_last then null else at.began_at end,
    surveyed_at = case when last.is_last then at.began_at else s.surveyed_at end
from at cross join last
