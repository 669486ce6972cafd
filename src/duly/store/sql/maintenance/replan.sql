-- Plans stalled jobs: each continues from its next future occurrence. A job without one has ended; one that cannot be
-- planned is parked, for maintenance/unpark.sql; one that costs too much to plan is only paused.
--   $1 job_ids  $2 versions they were read with  $3 next_run_at  $4 the reason, where the job cannot be planned
--   $5 who acts (`Actor.note`)
with able as materialized (
    -- A one-off that has fired has ended: planned again it would run twice.
    select j.job_id, case when j.kind <> 'once' or j.last_run_at is null then f.next_run_at end as next_run_at, f.reason
    from unnest($1::uuid[], $2::int[], $3::timestamptz[], $4::text[]) as f (job_id, version, next_run_at, reason)
    cross join lateral (
        select job_id, kind, last_run_at
        from duly.jobs
        where job_id = f.job_id and version = f.version and status = 'active' and next_run_at is null
        limit 1
        for no key update skip locked
    ) j
),
repaired as (
    update duly.jobs j
    set status = case
            when able.reason is not null then 'paused' when able.next_run_at is null then 'ended' else 'active'
        end,
        status_reason = able.reason, next_run_at = able.next_run_at, updated_at = duly.now(), version = version + 1
    from able
    where j.job_id = able.job_id and j.job_id = any (array(select job_id from able))
    returning j.job_id, j.shard, j.tenant, j.next_run_at, j.updated_at, j.version, able.reason
),
parked as (
    insert into duly.parked (job_id, version, parked_at)
    select job_id, version, updated_at from repaired where reason is not null and reason not like 'too costly%'
    on conflict (job_id) do update set version = excluded.version, parked_at = excluded.parked_at, retry_at = null
),
-- audited:
audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select repaired.updated_at, repaired.tenant, $5::jsonb -> 'who', 'park', 'job', repaired.job_id::text, repaired.job_id,
        jsonb_build_object('status', 'active'), jsonb_build_object('status', 'paused'), repaired.reason
    from repaired
    where repaired.reason is not null
),
-- end audited
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select job_id, updated_at, case when reason is null then 'repaired' else 'parked' end,
        jsonb_build_object('reason', coalesce(reason, 'it was active and nothing was planned'), 'next_run_at', next_run_at)
    from repaired
),
announced as (
    select duly.announce_due(array_agg(shard), array_agg(job_id), array_agg(next_run_at)) from repaired
)
select repaired.job_id from repaired cross join announced
