-- Lets parked jobs that can be planned again, or are to be retried, continue from their next future occurrence; a job
-- without one has ended.
--   $1 job_ids  $2 versions they were parked with  $3 next_run_at  $4 job_ids that are no longer Duly's to resume
--   $5 who acts (`Actor.note`)
with able as materialized (
    select j.job_id, f.next_run_at
    from unnest($1::uuid[], $2::int[], $3::timestamptz[]) as f (job_id, version, next_run_at)
    cross join lateral (
        select job_id from duly.jobs where job_id = f.job_id and version = f.version and status = 'paused'
        limit 1
        for no key update skip locked
    ) j
),
unparked as (
    update duly.jobs j
    set status = case when able.next_run_at is null then 'ended' else 'active' end, status_reason = null,
        next_run_at = able.next_run_at, updated_at = duly.now(), version = version + 1
    from able
    where j.job_id = able.job_id and j.job_id = any (array(select job_id from able))
    returning j.job_id, j.shard, j.tenant, j.status, j.next_run_at, j.updated_at
),
forgotten as (
    -- A job that could not be fired keeps its row until the next pass: if it is parked again before that, it waits
    -- longer.
    delete from duly.parked
    where job_id = any ($4::uuid[]) or (job_id = any (array(select job_id from able)) and retry_at is null)
),
-- audited:
audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select unparked.updated_at, unparked.tenant, $5::jsonb -> 'who', 'unpark', 'job', unparked.job_id::text, unparked.job_id,
        jsonb_build_object('status', 'paused'),
        jsonb_build_object('status', unparked.status, 'next_run_at', unparked.next_run_at), null::text
    from unparked
),
-- end audited
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select job_id, updated_at, 'unparked', jsonb_build_object('next_run_at', next_run_at)
    from unparked
),
announced as (
    select duly.announce_due(array_agg(shard), array_agg(job_id), array_agg(next_run_at)) from unparked
)
select (select count(*) from unparked) as unparked from announced
