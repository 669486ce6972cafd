-- Writes the plans of jobs that duly.submit stored; a job without a plan stays paused, with the reason.
--   $1 job_ids  $2 versions they were read with  $3 kinds  $4 schedules  $5 targets  $6 next_run_at  $7 reasons
--   $8 job_ids that no longer need a plan  $9 names, for those that were submitted without one
--   $10 who acts (`Actor.note`)
with able as materialized (
    select f.*
    from unnest($1::uuid[], $2::int[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::text[], $9::text[])
        as f (job_id, version, kind, schedule, target, next_run_at, reason, name)
    cross join lateral (
        -- A job that was changed meanwhile, or is locked, is read again.
        select from duly.jobs where job_id = f.job_id and version = f.version and status = 'paused'
        limit 1
        for no key update skip locked
    ) j
),
written as (
    update duly.jobs j
    set status = case when able.reason is null then 'active' else 'paused' end, status_reason = able.reason,
        kind = coalesce(able.kind, j.kind), schedule = coalesce(able.schedule, j.schedule),
        target = coalesce(able.target::jsonb, j.target), name = coalesce(able.name, j.name), next_run_at = able.next_run_at,
        updated_at = duly.now(), version = j.version + 1
    from able
    where j.job_id = able.job_id and j.job_id = any (array(select job_id from able))
    returning j.job_id, j.shard, j.tenant, j.next_run_at, j.updated_at, able.reason
),
planned as (
    delete from duly.sql_submits u
    where u.job_id = any ($8::uuid[]) or u.job_id = any (array(select job_id from able))
),
-- audited:
audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select written.updated_at, written.tenant, $10::jsonb -> 'who', 'park', 'job', written.job_id::text, written.job_id,
        null::jsonb, jsonb_build_object('status', 'paused'), written.reason
    from written
    where written.reason is not null
),
-- end audited
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select job_id, updated_at, 'parked', jsonb_build_object('reason', reason) from written where reason is not null
),
announced as (
    select duly.announce_due(array_agg(shard), array_agg(job_id), array_agg(next_run_at)) from written
)
select written.job_id, written.reason from written cross join announced
