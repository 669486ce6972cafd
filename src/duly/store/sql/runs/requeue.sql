-- Puts runs back into the queue: a retry after a failed attempt, a snooze, or a return at shutdown.
--   $1 claims named by this call  $2, $3 the runs: position in $1 and ordinal in that claim
--   $4 new state  $5 delay in seconds  $6 attempts to give back (1 where this one should not count)
--   $7 error as JSON, null where the attempt did not fail  $8, $9 started and finished, microseconds since 1970
--   $10 flags to add
-- The claim keeps the ordinals it has released, so that a later rescue of the same claim skips them and sending this
-- statement twice has no further effect. A run that was cancelled meanwhile, by itself or with its job, does not come
-- back; `serial`: jobs whose next run may go now because of that (see runs/complete.sql).
with clock as materialized (
    select duly.now() as now
),
held as materialized (
    select named.position, c.claim_id, c.worker_id, c.job_ids, c.scheduled_ats, c.fired_ats, c.epochs, c.attempts,
        c.flags, c.released, c.cancelled
    from unnest($1::uuid[]) with ordinality as named (claim_id, position)
    join duly.claims c on c.claim_id = named.claim_id
    order by c.claim_id -- as a heartbeat locks them, or the two would deadlock
    for no key update of c
),
run as materialized (
    select held.position, held.claim_id, held.worker_id, one.*, ended.state, ended.delay, ended.refund, ended.error,
        ended.started, ended.finished, ended.added, one.ordinal = any (held.cancelled) as stopped
    from held
    cross join unnest(held.job_ids, held.scheduled_ats, held.fired_ats, held.epochs, held.attempts, held.flags)
        with ordinality as one (job_id, scheduled_at, fired_at, epoch, attempt, flags, ordinal)
    join unnest($2::int[], $3::int[], $4::text[], $5::float8[], $6::smallint[], $7::text[], $8::bigint[], $9::bigint[],
            $10::smallint[])
        as ended (position, ordinal, state, delay, refund, error, started, finished, added)
        on ended.position = held.position and ended.ordinal = one.ordinal
    where not (one.ordinal = any (held.released)) and not duly.has_ended(one.job_id, one.scheduled_at)
),
let_go as (
    update duly.claims c
    set released = array_cat(c.released, gone.ordinals)
    from (select claim_id, array_agg(ordinal::int) as ordinals from run group by claim_id) gone
    where c.claim_id = gone.claim_id
),
tried as (
    insert into duly.attempts (job_id, scheduled_at, attempt, claim_id, worker_id, started_at, finished_at, error)
    select job_id, scheduled_at, attempt, claim_id, worker_id, to_timestamp(started::numeric / 1e6),
        to_timestamp(finished::numeric / 1e6), error::jsonb
    from run
    where error is not null
    on conflict do nothing
),
queued as (
    insert into duly.runs
        (job_id, scheduled_at, run_at, fired_at, epoch, shard, priority, attempt, flags, state, queue)
    select run.job_id, run.scheduled_at, clock.now + make_interval(secs => run.delay), run.fired_at, run.epoch,
        j.shard, j.priority, run.attempt - run.refund, run.flags | run.added | duly.mark_of_line(run.job_id), run.state, j.queue
    from run
    cross join clock
    join duly.jobs j on j.job_id = run.job_id
    where j.status <> 'cancelled' and not run.stopped
    returning queue, run_at
),
cancelled as (
    insert into duly.history (job_id, scheduled_at, fired_at, started_at, finished_at, claim_id, worker_id, epoch,
        attempt, flags, status, error, note)
    select run.job_id, run.scheduled_at, run.fired_at, to_timestamp(run.started::numeric / 1e6), clock.now, run.claim_id,
        run.worker_id, run.epoch, run.attempt, run.flags, 'cancelled', run.error::jsonb,
        jsonb_build_object('reason', case when run.stopped then 'the run was cancelled' else 'the job was cancelled' end)
    from run
    cross join clock
    join duly.jobs j on j.job_id = run.job_id
    where j.status = 'cancelled' or run.stopped
    returning job_id, flags
)
select (select count(*) from run) as accepted,
    duly.heed_tokens(array(select claim_id from held)) as heeded,
    (select array_agg(distinct job_id) from cancelled where duly.is_serial(flags)) as serial,
    (select count(pg_notify('duly_work', q.queue)::text) from (
        -- A worker that sleeps until a later run must hear of an earlier one.
        select distinct queue from queued cross join clock where queued.run_at <= clock.now + interval '60 seconds'
    ) q) as notified
