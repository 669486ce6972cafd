-- Turns late occurrences into runs, oldest first within a job. Fenced like a fire: by the epoch, and by the catch-up's
-- position when it was read.
--   $1 shard  $2 epoch
--   catch-ups: $3 job_id  $4 last_at  $5 expected first_at  $6 new first_at, null when none is left
--              $7 overlap  $8 max_queued
--   runs:      $9 job_id  $10 scheduled_at  $11 flags  $12 number among the job's runs of this release, from 1
-- The caller releases one catch-up of a job at a time. A locked job waits, the others do not.
with clock as materialized (
    select duly.now() as now
),
term as materialized (
    select epoch from duly.shards where shard = $1 and epoch = $2 for share
),
held as materialized (
    -- Jobs before catch-ups, as a fire locks them.
    select j.job_id, j.queue, j.priority, c.last_at, f.first_at, f.overlap, f.max_queued
    from unnest($3::uuid[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[], $7::text[], $8::int[])
        as f (job_id, last_at, expected, first_at, overlap, max_queued)
    cross join lateral (
        select ctid, job_id, queue, priority
        from duly.jobs
        where job_id = f.job_id and status in ('active', 'ended')
        limit 1
        for no key update skip locked
    ) j
    cross join lateral (
        select last_at
        from duly.catch_ups
        where job_id = f.job_id and last_at = f.last_at and first_at = f.expected
        limit 1
        for update skip locked
    ) c
    -- As in a fire: the lock may have waited for a row version that this statement's snapshot does not show.
    cross join lateral (select ctid from duly.jobs where job_id = f.job_id limit 1) seen
    where exists (select from term) and j.ctid = seen.ctid
),
busy as materialized (
    select h.job_id, line.waiting, line.last
    from held h
    cross join lateral (
        select count(*) as waiting, max(w.scheduled_at) as last
        from duly.runs w
        where w.job_id = h.job_id and w.state = 'waiting'
    ) line
    where h.overlap <> 'parallel' and (
        -- Not EXISTS: the planner may turn that into a hash of the whole queue.
        (select r.state from duly.runs r where r.job_id = h.job_id limit 1) is not null
        or h.job_id in (select duly.claimed_jobs())
    )
),
planned as materialized (
    select h.job_id, h.queue, h.priority, h.overlap, r.scheduled_at, r.flags,
        case
            when h.overlap = 'parallel' then 'queued'
            when b.job_id is null and r.number = 1 then 'queued'
            when h.overlap = 'queue'
                and coalesce(b.waiting, 0) + r.number - (b.job_id is null)::int > h.max_queued then 'skipped'
            else 'waiting'
        end as state
    from held h
    join unnest($9::uuid[], $10::timestamptz[], $11::smallint[], $12::int[]) as r (job_id, scheduled_at, flags, number)
        on r.job_id = h.job_id
    left join busy b on b.job_id = h.job_id
),
live as (
    insert into duly.runs
        (job_id, scheduled_at, run_at, fired_at, epoch, shard, priority, attempt, flags, state, queue)
    select p.job_id, p.scheduled_at, case when p.state = 'waiting' then 'infinity' else clock.now end, clock.now, $2,
        $1, p.priority, 0, p.flags, p.state, p.queue
    from planned p cross join clock
    where p.state <> 'skipped'
    on conflict do nothing
    returning queue
),
skipped as (
    insert into duly.history (job_id, scheduled_at, fired_at, finished_at, epoch, attempt, flags, status, note)
    select p.job_id, p.scheduled_at, clock.now, clock.now, $2, 0, p.flags, 'skipped',
        jsonb_build_object('reason', 'overlap', 'overlap', p.overlap)
    from planned p cross join clock
    where p.state = 'skipped'
    on conflict do nothing
),
born as materialized (
    select job_id, max(scheduled_at) filter (where state <> 'skipped') as last, count(*)::int as count
    from planned
    group by job_id
),
looked_at as (
    -- Overlap is decided by the run that ends last: one of these, unless a newer one waits behind them.
    update duly.jobs j
    set last_run_at = greatest(j.last_run_at, born.last), extra_at = greatest(b.last, born.last)
    from born
    left join busy b on b.job_id = born.job_id
    where j.job_id = born.job_id and born.last is not null
),
served as (
    update duly.catch_ups c
    set first_at = h.first_at, served_at = clock.now, count = c.count - coalesce(born.count, 0)
    from held h
    left join born on born.job_id = h.job_id
    cross join clock
    where c.job_id = h.job_id and c.last_at = h.last_at and h.first_at is not null
),
ended as (
    delete from duly.catch_ups c
    using held h
    where c.job_id = h.job_id and c.last_at = h.last_at and h.first_at is null
)
select (select count(*) from live) as live, (select array_agg(job_id) from held) as served,
    (select count(pg_notify('duly_work', queue)::text) from (select distinct queue from live) q) as notified
