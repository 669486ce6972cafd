-- Parks jobs that a leader cannot plan (their time zone is gone, their schedule cannot be read any more) or whose data
-- the database refuses: each is paused with the reason, and the shard goes on. Fenced like a fire.
--   $1 shard  $2 epoch  $3 job_ids  $4 expected next_run_at  $5 reasons  $6 who acts (`Actor.note`)
with term as materialized (
    select epoch from duly.shards where shard = $1 and epoch = $2 for share
),
free as materialized (
    select f.*
    from unnest($3::uuid[], $4::timestamptz[], $5::text[]) as f (job_id, expected, reason)
    cross join lateral (
        select from duly.jobs where job_id = f.job_id and next_run_at = f.expected limit 1 for no key update skip locked
    ) j
    where exists (select from term)
),
parked as (
    update duly.jobs j
    set status = 'paused', next_run_at = null, status_reason = f.reason, updated_at = duly.now(), version = version + 1
    from free f
    where j.job_id = f.job_id
    returning j.job_id, j.tenant, j.updated_at, j.version, f.reason, f.expected
),
marked as (
    -- A parked job continues when it can be planned again; see maintenance/unpark.sql. A job that could be planned but
    -- not fired is retried after 4 minutes, and after twice as long each time it fails again, up to a day.
    insert into duly.parked as p (job_id, version, parked_at, retry_at)
    select job_id, version, updated_at, case when reason like 'cannot be fired%' then updated_at + interval '4 minutes' end
    from parked
    on conflict (job_id) do update
    set version = excluded.version, parked_at = excluded.parked_at, tries = p.tries + 1,
        retry_at = excluded.retry_at + interval '4 minutes' * (least(360::float8, 2::float8 ^ least(p.tries + 1, 10)::float8) - 1::float8)
),
-- audited:
audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select parked.updated_at, parked.tenant, $6::jsonb -> 'who', 'park', 'job', parked.job_id::text, parked.job_id,
        jsonb_build_object('status', 'active', 'next_run_at', parked.expected), jsonb_build_object('status', 'paused'),
        parked.reason
    from parked
),
-- end audited
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select job_id, updated_at, 'parked', jsonb_build_object('reason', reason, 'next_run_at', expected)
    from parked
)
select job_id from parked
