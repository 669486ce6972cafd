-- Pauses jobs whose plan costs too much, each with its reason, so that no later leader pays for it again. Fenced by the
-- job's row and not by the epoch: the node that paid may have lost the shard meanwhile, and the next leader should not
-- pay as well. For the same reason duly.parked has no row for it and nothing retries it: it stays paused until it is
-- changed.
--   $1 job_ids  $2 versions of their rows when fires/due.sql read them  $3 expected next_run_at  $4 reasons
--   $5 who acts (`Actor.note`)
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
    returning j.job_id, j.tenant, j.updated_at, f.reason, f.expected
),
-- audited:
audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select parked.updated_at, parked.tenant, $5::jsonb -> 'who', 'park', 'job', parked.job_id::text, parked.job_id,
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
