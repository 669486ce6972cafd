-- Puts the lines of these jobs in order, after runs joined or left them out of turn (triggered, redriven, cancelled):
-- the first waiting run goes if no run before it is unfinished, and the job notes which run is last.
--   $1 job_ids, locked earlier in this transaction (jobs/lock.sql, lock_available.sql): no fire decides meanwhile
--   $2 read all of their runs? Not needed if only the first run of a line has ended: the runs between the line's ends
--      wait, are being retried, or are marked as serial, and indexes find these without reading the line.
with held as materialized (
    select claim_id, job_id, scheduled_at, ordinal
    from duly.held_runs
    where job_id = any ($1::uuid[]) and not duly.has_ended(job_id, scheduled_at)
),
standing as materialized (
    select ctid, job_id, scheduled_at, state from duly.runs where job_id = any ($1::uuid[]) and $2::boolean
    union all
    select near.*
    from unnest($1::uuid[]) as asked (job_id)
    cross join lateral (
        -- Not min and max: the planner may compute those by reading the line.
        select (
            select w.scheduled_at
            from duly.runs w
            where w.job_id = asked.job_id and w.state = 'waiting'
            order by w.scheduled_at
            limit 1
        ) as first, (
            select w.scheduled_at
            from duly.runs w
            where w.job_id = asked.job_id and w.state = 'waiting'
            order by w.scheduled_at desc
            limit 1
        ) as last
    ) line
    cross join lateral (
        select r.ctid, r.job_id, r.scheduled_at, r.state
        from duly.runs r
        where r.job_id = asked.job_id and r.scheduled_at <= line.first
        union
        select r.ctid, r.job_id, r.scheduled_at, r.state
        from duly.runs r
        where r.job_id = asked.job_id and r.scheduled_at >= line.last
        union
        -- If none waits, the last run is enough.
        (
            select r.ctid, r.job_id, r.scheduled_at, r.state
            from duly.runs r
            where r.job_id = asked.job_id and line.last is null
            order by r.scheduled_at desc
            limit 1
        )
        union
        select r.ctid, r.job_id, r.scheduled_at, r.state
        from duly.runs r
        where r.job_id = asked.job_id and r.state = 'queued' and duly.is_serial(r.flags)
        union
        select r.ctid, r.job_id, r.scheduled_at, r.state
        from duly.runs r
        where r.job_id = asked.job_id and r.state = 'retrying'
    ) near
    where not $2::boolean
),
line as materialized (
    select job_id, bool_or(active) as active, min(scheduled_at) filter (where not active) as first,
        coalesce(max(scheduled_at) filter (where not active), max(scheduled_at)) as last
    from (
        select job_id, scheduled_at, true as active from held
        union all
        select job_id, scheduled_at, state <> 'waiting' from standing
    ) live
    group by job_id
),
ordered as (
    -- All runs before a waiting one are serial: the end of each releases the next.
    update duly.runs r
    set flags = duly.as_serial(r.flags),
        state = case when not line.active and r.scheduled_at = line.first then 'queued' else r.state end,
        run_at = case when not line.active and r.scheduled_at = line.first then duly.now() else r.run_at end
    from line
    -- By ctid: a join may read the line. The ctids hold, because every statement that moves runs has the job locked; if
    -- one is moved all the same (jobs/follow.sql), upkeep releases it.
    where r.ctid = any (array(select ctid from standing)) and r.job_id = line.job_id and line.first is not null
        and (not duly.is_serial(r.flags) or (not line.active and r.scheduled_at = line.first))
    returning r.queue, r.state
),
marked as (
    update duly.claims c
    set flags = array(
            select case when one.ordinal = any (hit.ordinals) then duly.as_serial(one.flags) else one.flags end
            from unnest(c.flags) with ordinality as one (flags, ordinal)
            order by one.ordinal
        )
    from (
        select held.claim_id, array_agg(held.ordinal) as ordinals
        from held join line on line.job_id = held.job_id
        where line.first is not null
        group by held.claim_id
    ) hit
    where c.claim_id = hit.claim_id
),
noted as (
    update duly.jobs j
    set extra_at = line.last
    from unnest($1::uuid[]) as asked (job_id)
    left join line on line.job_id = asked.job_id
    where j.job_id = asked.job_id
)
select count(pg_notify('duly_work', queue)::text) as notified
from (select distinct queue from ordered where state = 'queued') q
