-- Takes back the runs that expired claims still hold: neither released nor in history. The crash counts as an attempt;
-- a run without attempts left ends in the dead letters, so a run that kills its workers does not do so for ever.
--   $1 claim_ids, locked by lock_expired.sql in this transaction  $2 default of max_retries
with clock as materialized (
    select duly.now() as now
),
run as materialized (
    select c.claim_id, c.worker_id, c.claimed_at, one.*, count(*) over (partition by c.claim_id) as lost_together,
        j.shard, j.priority, j.queue, j.tenant, j.name, j.handler, j.target, j.payload, j.payload_ref, j.policy,
        case when one.ordinal = any (c.cancelled) then 'cancelled' else j.status end as status,
        duly.whole(j.policy, 'max_retries', $2) as max_retries,
        jsonb_build_object('type', 'LeaseLost', 'message', format(
            'the worker (%s) was lost: its lease ran out at %s', coalesce(n.name, c.worker_id::text), c.lease_until
        ), 'traceback', null) as error
    from duly.claims c
    cross join unnest(c.job_ids, c.scheduled_ats, c.fired_ats, c.epochs, c.attempts, c.flags)
        with ordinality as one (job_id, scheduled_at, fired_at, epoch, attempt, flags, ordinal)
    join duly.jobs j on j.job_id = one.job_id
    left join duly.nodes n on n.node_id = c.worker_id
    where c.claim_id = any ($1::uuid[])
        and not (one.ordinal = any (c.released))
        and not duly.has_ended(one.job_id, one.scheduled_at)
),
tried as (
    insert into duly.attempts (job_id, scheduled_at, attempt, claim_id, worker_id, started_at, finished_at, error)
    select job_id, scheduled_at, attempt, claim_id, worker_id, claimed_at, clock.now, error
    from run cross join clock
    on conflict do nothing
),
queued as (
    insert into duly.runs
        (job_id, scheduled_at, run_at, fired_at, epoch, shard, priority, attempt, flags, state, queue)
    select job_id, scheduled_at,
        -- One of them may have killed the worker. If they came back together, they would meet it together again until
        -- all had used up their attempts. The first time it was most likely not a run: they come back soon.
        clock.now + case when lost_together > 1
            then random() * (case attempt when 1 then 0.5 when 2 then 8 else 30 end)::float8 * interval '1 second'
            else interval '0' end,
        fired_at, epoch, shard, priority, attempt, flags | duly.mark_of_line(job_id), 'queued', queue
    from run cross join clock
    where attempt <= max_retries and status <> 'cancelled'
    on conflict do nothing
    returning queue
),
recorded as (
    insert into duly.history (job_id, scheduled_at, fired_at, started_at, finished_at, claim_id, worker_id, epoch,
        attempt, flags, status, error)
    select job_id, scheduled_at, fired_at, claimed_at, clock.now, claim_id, worker_id, epoch, attempt, flags,
        case when status = 'cancelled' then 'cancelled' else 'dead' end, error
    from run cross join clock
    where attempt > max_retries or status = 'cancelled'
    on conflict do nothing
    returning job_id, scheduled_at, status, flags
),
buried as (
    insert into duly.dead_letters (job_id, scheduled_at, buried_at, attempt, tenant, name, queue, handler, target,
        payload, payload_ref, secret_fields, error, attempts)
    select run.job_id, run.scheduled_at, clock.now, run.attempt, run.tenant, run.name, run.queue, run.handler,
        run.target, run.payload, run.payload_ref, run.policy -> 'secret_fields', run.error,
        duly.attempts_of(run.job_id, run.scheduled_at) || jsonb_build_object('attempt', run.attempt, 'worker_id', run.worker_id,
            'started_at', run.claimed_at, 'finished_at', clock.now, 'error', run.error)
    from run
    cross join clock
    join recorded using (job_id, scheduled_at)
    where recorded.status = 'dead'
    on conflict do nothing
),
gone as (
    delete from duly.claims where claim_id = any ($1::uuid[])
)
select (select count(*) from queued) as requeued,
    duly.heed_tokens($1::uuid[]) as heeded,
    (select count(*) from recorded) as buried,
    (select array_agg(distinct job_id) from recorded where duly.is_serial(flags)) as serial,
    (select count(pg_notify('duly_work', queue)::text) from (select distinct queue from queued) q) as notified
