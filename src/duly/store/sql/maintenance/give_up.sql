-- Ends the run of a claim that cannot be taken back, with the reason, and writes as little of the job as possible,
-- because that may be what fails.
--   $1 claim_id, locked by lock_expired.sql in this transaction  $2 the database's error
with clock as materialized (
    select duly.now() as now
),
run as materialized (
    select c.claim_id, c.worker_id, c.claimed_at, one.*,
        jsonb_build_object('type', 'CannotBeTakenBack', 'message',
            'the worker was lost, and the database would not take the run back: ' || $2::text) as error
    from duly.claims c
    cross join unnest(c.job_ids, c.scheduled_ats, c.fired_ats, c.epochs, c.attempts, c.flags)
        with ordinality as one (job_id, scheduled_at, fired_at, epoch, attempt, flags, ordinal)
    where c.claim_id = $1 and not (one.ordinal = any (c.released))
        and not duly.has_ended(one.job_id, one.scheduled_at)
),
recorded as (
    insert into duly.history (job_id, scheduled_at, fired_at, started_at, finished_at, claim_id, worker_id, epoch,
        attempt, flags, status, error)
    select job_id, scheduled_at, fired_at, claimed_at, clock.now, claim_id, worker_id, epoch, attempt, flags, 'dead', error
    from run cross join clock
    on conflict do nothing
    returning job_id, scheduled_at, duly.is_serial(flags) as serial
),
buried as (
    insert into duly.dead_letters (job_id, scheduled_at, buried_at, attempt, tenant, name, queue, handler, target,
        payload, payload_ref, secret_fields, error, attempts)
    select run.job_id, run.scheduled_at, clock.now, run.attempt, j.tenant, j.name, j.queue, j.handler, j.target,
        j.payload, j.payload_ref, j.policy -> 'secret_fields', run.error, '[]'
    from run
    cross join clock
    join recorded using (job_id, scheduled_at)
    join duly.jobs j on j.job_id = run.job_id
    on conflict do nothing
),
gone as (
    delete from duly.claims where claim_id = $1
)
select job_id, scheduled_at, serial from recorded
