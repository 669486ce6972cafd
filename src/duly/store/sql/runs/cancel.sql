-- Cancels one run: a waiting one ends here, a running one is asked to stop.
--   $1 job_id, locked by jobs/lock.sql  $2 scheduled_at  $3 who acts (`Actor.note`)
-- `became` is null if the run has ended, or is moving between two tables at this moment; the caller looks again.
with clock as materialized (
    select duly.now() as now
),
gone as (
    delete from duly.runs where job_id = $1 and scheduled_at = $2 returning *
),
recorded as (
    insert into duly.history (job_id, scheduled_at, fired_at, finished_at, epoch, attempt, flags, status, note)
    select job_id, scheduled_at, fired_at, clock.now, epoch, attempt, flags, 'cancelled',
        jsonb_build_object('reason', 'the run was cancelled')
    from gone cross join clock
    on conflict do nothing
    returning 1
),
running as materialized (
    select claim_id, ordinal, cancelled from duly.held_runs where job_id = $1 and scheduled_at = $2 and not duly.has_ended($1, $2)
),
asked as (
    update duly.claims c
    set cancelled = array_append(c.cancelled, one.ordinal)
    from running one
    -- Checked again under the lock: a run that went back to the queue meanwhile is found there by the next call.
    where c.claim_id = one.claim_id and not (one.ordinal = any (c.released))
        and c.claim_id = any (array(select claim_id from running))
    returning c.worker_id
),
-- audited:
audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    -- A run that was asked to stop before has its row already.
    select clock.now, $3::jsonb ->> 'tenant', $3::jsonb -> 'who', 'cancel', 'run', $3::jsonb ->> 'object', $1::uuid,
        jsonb_build_object('status', found.status), jsonb_build_object('status', found.became), $3::jsonb ->> 'reason'
    from (
        select gone.state as status, 'cancelled' as became from gone where exists (select from recorded)
        union all
        select 'running', 'asked to stop' from running where not running.cancelled and exists (select from asked)
    ) as found
    cross join clock
),
-- end audited
notified as (
    select count(pg_notify('duly_cancel', worker_id::text)::text) as workers from asked
)
select case when exists (select from recorded) then 'cancelled' when notified.workers > 0 then 'running' end as became
from notified
