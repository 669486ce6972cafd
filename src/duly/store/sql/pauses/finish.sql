-- Ends pauses at their time: each job goes on with its next future occurrence. A job without one has ended; one that
-- cannot be planned is parked, for maintenance/unpark.sql.
--   $1 job_ids  $2 change_ids of their pauses  $3 versions they were read with  $4 next_run_at
--   $5 the reason, where the job cannot be planned  $6, $7 job_ids and change_ids of pauses that are no longer in force
--   $8 who acts (`Actor.note`)
-- A job that was changed since it was read has another version and is left to the next look, and so is one that another
-- transaction has locked.
with able as materialized (
    select f.*
    from unnest($1::uuid[], $2::bigint[], $3::int[], $4::timestamptz[], $5::text[])
        as f (job_id, change_id, version, next_run_at, problem)
    cross join lateral (
        select from duly.pauses where job_id = f.job_id and change_id = f.change_id limit 1 for update skip locked
    ) p
    cross join lateral (
        select status_reason
        from duly.jobs
        where job_id = f.job_id and version = f.version and status = 'paused'
        limit 1
        for no key update skip locked
    ) j
),
resumed as (
    update duly.jobs j
    set status = case
            when able.problem is not null then 'paused' when able.next_run_at is null then 'ended' else 'active'
        end,
        status_reason = able.problem, next_run_at = able.next_run_at, updated_at = duly.now(), version = j.version + 1
    from able
    where j.job_id = able.job_id and j.job_id = any (array(select job_id from able))
    returning j.job_id, j.shard, j.tenant, j.status, j.next_run_at, j.updated_at, j.version, able.problem
),
parked as (
    insert into duly.parked (job_id, version, parked_at)
    select job_id, version, updated_at from resumed where problem is not null and problem not like 'too costly%'
    on conflict (job_id) do update set version = excluded.version, parked_at = excluded.parked_at, retry_at = null
),
forgotten as (
    delete from duly.pauses p
    using (
        select job_id, change_id from able
        union all
        select job_id, change_id from unnest($6::uuid[], $7::bigint[]) as void (job_id, change_id)
    ) as over
    where p.job_id = over.job_id and p.change_id = over.change_id
),
-- audited:
audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select resumed.updated_at, resumed.tenant, $8::jsonb -> 'who',
        case when resumed.problem is null then 'resume' else 'park' end, 'job', resumed.job_id::text, resumed.job_id,
        jsonb_build_object('status', 'paused'),
        jsonb_build_object('status', resumed.status, 'next_run_at', resumed.next_run_at),
        coalesce(resumed.problem, 'its pause ended')
    from resumed
),
-- end audited
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select job_id, updated_at, case when problem is null then 'resumed' else 'parked' end,
        jsonb_build_object('reason', coalesce(problem, 'its pause ended'), 'next_run_at', next_run_at)
    from resumed
),
announced as (
    select duly.announce_due(array_agg(shard), array_agg(job_id), array_agg(next_run_at))
    from resumed
    where next_run_at is not null
)
select resumed.job_id from resumed cross join announced
