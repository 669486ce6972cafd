-- Jobs of duly.submit become what they were planned to be, or stay paused with the reason why not.
--   $1 job_ids  $2 versions they were read with  $3 kinds  $4 schedules  $5 targets  $6 next_run_at  $7 reasons
--   $8 job_ids of those that need no plan any more  $9 names, for those that were submitted without
with able as materialized (
    select f.*
    from unnest($1::uuid[], $2::int[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::text[], $9::text[])
        as f (job_id, version, kind, schedule, target, next_run_at, reason, name)
    cross join lateral (
        -- Somebody was faster, or has changed it: then it is read again.
        select from duly.jobs where job_id = f.job_id and version = f.version and status = 'paused'
        limit 1
        for no key update skip locked
    ) j
),
adopted as (
    update duly.jobs j
    set status = case when able.reason is null then 'active' else 'paused' end, status_reason = able.reason,
        kind = coalesce(able.kind, j.kind), schedule = coalesce(able.schedule, j.schedule),
        target = coalesce(able.target::jsonb, j.target), name = coalesce(able.name, j.name), next_run_at = able.next_run_at,
        updated_at = duly.now(), version = j.version + 1
    from able
    where j.job_id = able.job_id and j.job_id = any (array(select job_id from able))
    returning j.job_id, j.shard, j.next_run_at, j.updated_at, able.reason
),
planned as (
    delete from duly.sql_submits u
    where u.job_id = any ($8::uuid[]) or u.job_id = any (array(select job_id from able))
),
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select job_id, updated_at, 'parked', jsonb_build_object('reason', reason) from adopted where reason is not null
),
soon as (
    select case when count(*) > 50 then '*' else
            string_agg(shard::text || ':' || job_id::text || ':' || (extract(epoch from next_run_at) * 1e6)::bigint::text, ',')
        end as jobs
    from adopted
    where next_run_at <= updated_at + interval '15 minutes'
),
announced as (
    select count(pg_notify('duly_due', jobs)::text) as due from soon where jobs is not null
)
select adopted.job_id, adopted.reason from adopted cross join announced
