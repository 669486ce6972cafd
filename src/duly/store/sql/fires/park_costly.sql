-- Jobs whose plan costs too much: each is paused with the reason, so that nobody pays for it again. Not by the epoch but by
-- the job itself: who paid may have lost the lead meanwhile, and the next leader is not to pay as well. For the same
-- reason nothing tries it again (duly.parked): it stays until somebody changes it.
--   $1 job_ids  $2 versions of their rows when fires/due.sql looked at them  $3 expected next_run_at  $4 reasons
with free as materialized (
    select f.*
    from unnest($1::uuid[], $2::xid[], $3::timestamptz[], $4::text[]) as f (job_id, version, expected, reason)
    cross join lateral (
        select from duly.jobs
        where job_id = f.job_id and xmin = f.version and next_run_at = f.expected and status = 'active'
        limit 1
        for no key update skip locked
    ) j
),
parked as (
    update duly.jobs j
    set status = 'paused', next_run_at = null, status_reason = f.reason, updated_at = duly.now(), version = j.version + 1
    from free f
    where j.job_id = f.job_id and j.job_id = any (array(select job_id from free))
    returning j.job_id, j.updated_at, f.reason, f.expected
),
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select job_id, updated_at, 'parked', jsonb_build_object('reason', reason, 'next_run_at', expected)
    from parked
)
select job_id from parked
