-- Records runs that will not be tried again: the outcome in history and, where it is `dead`, a dead letter.
--   $1 claims named by this call  $2, $3 the runs: position in $1 and ordinal in that claim
--   $4 error as JSON  $5, $6 started and finished, microseconds since 1970  $7 status: dead or cancelled
with clock as materialized (
    select duly.now() as now
),
held as materialized (
    select named.position, c.claim_id, c.worker_id, c.job_ids, c.scheduled_ats, c.fired_ats, c.epochs, c.attempts,
        c.flags, c.released
    from unnest($1::uuid[]) with ordinality as named (claim_id, position)
    join duly.claims c on c.claim_id = named.claim_id
    for key share of c
),
run as materialized (
    select held.claim_id, held.worker_id, one.*, ended.error, ended.started, ended.finished, ended.status
    from held
    cross join unnest(held.job_ids, held.scheduled_ats, held.fired_ats, held.epochs, held.attempts, held.flags)
        with ordinality as one (job_id, scheduled_at, fired_at, epoch, attempt, flags, ordinal)
    join unnest($2::int[], $3::int[], $4::text[], $5::bigint[], $6::bigint[], $7::text[])
        as ended (position, ordinal, error, started, finished, status)
        on ended.position = held.position and ended.ordinal = one.ordinal
    where not (one.ordinal = any (held.released))
),
recorded as (
    insert into duly.history (job_id, scheduled_at, fired_at, started_at, finished_at, claim_id, worker_id, epoch,
        attempt, flags, status, error)
    select job_id, scheduled_at, fired_at, to_timestamp(started::numeric / 1e6), to_timestamp(finished::numeric / 1e6), claim_id,
        worker_id, epoch, attempt, flags, status, error::jsonb
    from run
    on conflict do nothing
    returning job_id, scheduled_at, flags
),
tried as (
    insert into duly.attempts (job_id, scheduled_at, attempt, claim_id, worker_id, started_at, finished_at, error)
    select run.job_id, run.scheduled_at, run.attempt, run.claim_id, run.worker_id, to_timestamp(run.started::numeric / 1e6),
        to_timestamp(run.finished::numeric / 1e6), run.error::jsonb
    from run
    join recorded using (job_id, scheduled_at)
    on conflict do nothing
),
buried as (
    insert into duly.dead_letters (job_id, scheduled_at, buried_at, attempt, tenant, name, queue, handler, target,
        payload, payload_ref, secret_fields, error, attempts)
    select run.job_id, run.scheduled_at, clock.now, run.attempt, j.tenant, j.name, j.queue, j.handler, j.target,
        j.payload, j.payload_ref, j.policy -> 'secret_fields', run.error::jsonb,
        duly.attempts_of(run.job_id, run.scheduled_at) || jsonb_build_object('attempt', run.attempt, 'worker_id', run.worker_id,
            'started_at', to_timestamp(run.started::numeric / 1e6), 'finished_at', to_timestamp(run.finished::numeric / 1e6),
            'error', run.error::jsonb)
    from run
    cross join clock
    join recorded using (job_id, scheduled_at)
    join duly.jobs j on j.job_id = run.job_id
    where run.status = 'dead'
    on conflict do nothing
)
select count(*) as accepted, array_agg(distinct job_id) filter (where duly.is_serial(flags)) as serial from recorded
