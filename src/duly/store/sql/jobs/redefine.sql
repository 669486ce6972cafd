-- Bring a job that the application's code declares up to date with the code; it keeps its id, its history and, if
-- somebody paused it, its pause.
--   $1 tenant  $2 dedupe_key  then the new definition  $17 the fingerprint of the old one
with redefined as (
    update duly.jobs
    set name = $3, handler = $4, payload = $5::jsonb, payload_ref = $6, kind = $7, schedule = $8, timezone = $9,
        start_at = $10, end_at = $11, max_runs = $12, queue = $13, priority = $14, policy = $15::jsonb,
        labels = $16::jsonb, fingerprint = $18,
        next_run_at = case when status = 'paused' then null else $19::timestamptz end,
        status = case when status = 'paused' then 'paused' else 'active' end,
        updated_at = duly.now(), version = version + 1
    where tenant = $1 and dedupe_key = $2 and fingerprint = $17 and status <> 'cancelled'
    returning job_id, shard, next_run_at
),
announced as (
    select count(pg_notify('duly_due',
        shard || ':' || job_id || ':' || (extract(epoch from next_run_at) * 1e6)::bigint)::text) as due
    from redefined
    where next_run_at is not null
)
select redefined.job_id from redefined cross join announced
