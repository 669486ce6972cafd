-- Records runs that no worker started within their job's start_within_seconds: they end as missed, unbegun.
--   $1 claims named by this call  $2, $3 the runs: position in $1 and ordinal in that claim
--   $4 when that was found, microseconds since 1970  $5 start_within_seconds
-- The fence is that of runs/complete.sql, and `serial` means the same. The attempt that the claim counted was none.
with held as materialized (
    select named.position, c.claim_id, c.worker_id, c.job_ids, c.scheduled_ats, c.fired_ats, c.epochs, c.attempts,
        c.flags, c.released
    from unnest($1::uuid[]) with ordinality as named (claim_id, position)
    join duly.claims c on c.claim_id = named.claim_id
    for key share of c
),
recorded as (
    insert into duly.history (job_id, scheduled_at, fired_at, finished_at, claim_id, worker_id, epoch, attempt, flags,
        status, note)
    select one.job_id, one.scheduled_at, one.fired_at, to_timestamp(ended.finished::numeric / 1e6), held.claim_id,
        held.worker_id, one.epoch, one.attempt - 1, one.flags, 'missed',
        jsonb_build_object('reason', 'expired', 'start_within_seconds', ended.seconds, 'count', 1,
            'first', one.scheduled_at, 'last', one.scheduled_at)
    from held
    cross join unnest(held.job_ids, held.scheduled_ats, held.fired_ats, held.epochs, held.attempts, held.flags)
        with ordinality as one (job_id, scheduled_at, fired_at, epoch, attempt, flags, ordinal)
    join unnest($2::int[], $3::int[], $4::bigint[], $5::int[]) as ended (position, ordinal, finished, seconds)
        on ended.position = held.position and ended.ordinal = one.ordinal
    where not (one.ordinal = any (held.released))
    on conflict do nothing
    returning job_id, flags
)
select count(*) as accepted, array_agg(distinct job_id) filter (where duly.is_serial(flags)) as serial from recorded
