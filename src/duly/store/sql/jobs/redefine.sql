-- Bring a job that the application's code declares up to date with the code; it keeps its id, its history and, if
-- somebody paused it, its pause.
--   $1 tenant  $2 dedupe_key  then the new definition  $17 the fingerprint of the old one
with before as materialized (
    select job_id, next_run_at, jsonb_build_object('kind', kind, 'schedule', schedule, 'timezone', timezone,
        'start_at', start_at, 'end_at', end_at, 'dst_gap', policy -> 'dst_gap', 'dst_fold', policy -> 'dst_fold',
        'jitter_seconds', policy -> 'jitter_seconds') as timing
    from duly.jobs
    where tenant = $1 and dedupe_key = $2 and fingerprint = $17 and status <> 'cancelled'
    for no key update
),
redefined as (
    update duly.jobs j
    set name = $3, handler = $4, payload = $5::jsonb, payload_ref = $6, kind = $7, schedule = $8, timezone = $9,
        start_at = $10, end_at = $11, max_runs = $12, queue = $13, priority = $14, policy = $15::jsonb,
        labels = $16::jsonb, fingerprint = $18,
        next_run_at = case when status = 'paused' then null else $19::timestamptz end,
        status = case when status = 'paused' then 'paused' else 'active' end,
        updated_at = duly.now(), version = version + 1
    from before
    where j.job_id = before.job_id and j.fingerprint = $17 and j.status <> 'cancelled'
    returning j.*
),
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select r.job_id, r.updated_at, 'redefined', jsonb_build_object('next_run_at', before.next_run_at)
        || case when after.timing = before.timing then '{}' else jsonb_build_object('before', before.timing) end
    from redefined r
    join before on before.job_id = r.job_id
    cross join lateral (
        select jsonb_build_object('kind', r.kind, 'schedule', r.schedule, 'timezone', r.timezone,
            'start_at', r.start_at, 'end_at', r.end_at, 'dst_gap', r.policy -> 'dst_gap',
            'dst_fold', r.policy -> 'dst_fold', 'jitter_seconds', r.policy -> 'jitter_seconds') as timing
    ) after
),
announced as (
    select count(pg_notify('duly_due',
        shard || ':' || job_id || ':' || (extract(epoch from next_run_at) * 1e6)::bigint)::text) as due
    from redefined
    where next_run_at is not null
)
select redefined.job_id from redefined cross join announced
