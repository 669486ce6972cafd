-- Records runs that succeeded, and closes the claims that hold nothing more.
--   $1 claims named by this call  $2, $3 the runs: position in $1 and ordinal in that claim
--   $4, $5 started and finished, microseconds since 1970  $6 results as JSON  $7 flags to add  $8 claims to close
-- The fence: a claim that rescue took away has no row, hence no arrays, hence nothing to insert.
-- `serial`: jobs whose runs go one after the other, and whose next run may go now. jobs/put_in_order.sql releases it
-- under the job's lock, so that it cannot happen twice.
-- FOR KEY SHARE lets heartbeats pass and makes a rescue of the same claim wait or skip it.
with held as materialized (
    select named.position, c.claim_id, c.worker_id, c.job_ids, c.scheduled_ats, c.fired_ats, c.epochs, c.attempts,
        c.flags, c.released
    from unnest($1::uuid[]) with ordinality as named (claim_id, position)
    join duly.claims c on c.claim_id = named.claim_id
    for key share of c
),
run as materialized (
    select held.position, held.claim_id, held.worker_id, held.released, one.*
    from held
    cross join unnest(held.job_ids, held.scheduled_ats, held.fired_ats, held.epochs, held.attempts, held.flags)
        with ordinality as one (job_id, scheduled_at, fired_at, epoch, attempt, flags, ordinal)
),
recorded as (
    insert into duly.history (job_id, scheduled_at, fired_at, started_at, finished_at, claim_id, worker_id, epoch,
        attempt, flags, status, result)
    select run.job_id, run.scheduled_at, run.fired_at, timestamptz 'epoch' + ended.started::float8 * interval '1 microsecond',
        timestamptz 'epoch' + ended.finished::float8 * interval '1 microsecond', run.claim_id, run.worker_id, run.epoch, run.attempt,
        run.flags | ended.flags, 'succeeded', ended.result::jsonb
    from unnest($2::int[], $3::int[], $4::bigint[], $5::bigint[], $6::text[], $7::smallint[])
        as ended (position, ordinal, started, finished, result, flags)
    join run on run.position = ended.position and run.ordinal = ended.ordinal
    where not (ended.ordinal = any (run.released))
    on conflict do nothing
    returning job_id, scheduled_at, flags
),
closed as (
    -- In the order in which a heartbeat locks them, or the two would deadlock. A database that was promoted may have
    -- lost outcomes after it confirmed them to the worker. So a claim from before the promotion, or from before the
    -- server's start, is closed only if each of its runs is accounted for; otherwise its lease runs out, and rescue
    -- brings back the missing runs.
    delete from duly.claims
    where claim_id = any (array(
        select c.claim_id
        from duly.claims c
        where c.claim_id = any ($8::uuid[]) and not (
            c.claimed_at <= greatest(pg_last_xact_replay_timestamp(), pg_postmaster_start_time())
            and exists (
                select
                from unnest(c.job_ids, c.scheduled_ats) with ordinality as one (job_id, scheduled_at, ordinal)
                where not (one.ordinal = any (c.released))
                    and one.ordinal not in (
                        select now.ordinal
                        from unnest($2::int[], $3::int[]) as now (position, ordinal)
                        where ($1::uuid[])[now.position] = c.claim_id
                    )
                    and not duly.has_ended(one.job_id, one.scheduled_at)
            )
        )
        order by c.claim_id
        for update of c
    ))
)
select count(*) as accepted, array_agg(distinct job_id) filter (where duly.is_serial(flags)) as serial from recorded
