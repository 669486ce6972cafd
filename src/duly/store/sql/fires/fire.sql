-- The heart of Duly: turns due occurrences of one shard into runs and moves their jobs on, all or nothing.
--   $1 shard  $2 epoch of the leader's term
--   jobs:  $3 job_id  $4 expected next_run_at  $5 new next_run_at  $6 overlap (skip, queue, parallel)  $7 max_queued
--   runs:  $8 job_id  $9 scheduled_at  $10 flags  $11 number among the job's runs of this fire, from 1
--   drops: $12 job_id  $13 first  $14 last  $15 count  $16 reason; 'deferred' ones are not dropped, they run later
--   $17 version of each job's row when fires/due.sql read it
-- An occurrence fires once, whichever node tries: the row moves only from the expected next_run_at, and only while the
-- shard's epoch is still the caller's. It must also be the very row that was planned: a change of the schedule may
-- leave next_run_at as it was, and a trigger, redrive or cancel may have started or ended a run that this statement's
-- snapshot does not show. Such a job is left for the next read, and so is a locked one: the others do not wait for it.
-- FOR SHARE keeps the epoch from being raised until this commits; a leader that was deposed meanwhile finds no row and
-- moves nothing.
with clock as materialized (
    select duly.now() as now
),
term as materialized (
    select epoch from duly.shards where shard = $1 and epoch = $2 for share
),
due as materialized (
    -- Lateral with a limit: always one probe of the primary key per job, never a walk over the shard. `unsure`: no run
    -- has started since the job was changed. Its runs may have been allowed to overlap before, and then an older run
    -- may outlive the last.
    select j.job_id, j.queue, j.priority, j.last_run_at, j.extra_at, f.next_run_at, f.overlap, f.max_queued,
        f.overlap <> 'parallel' and greatest(j.last_run_at, j.extra_at) <= j.updated_at as unsure
    from unnest($3::uuid[], $4::timestamptz[], $5::timestamptz[], $6::text[], $7::int[], $17::xid[])
        as f (job_id, expected, next_run_at, overlap, max_queued, version)
    cross join lateral (
        select job_id, queue, priority, last_run_at, extra_at, updated_at
        from duly.jobs
        where job_id = f.job_id and next_run_at = f.expected and shard = $1 and xmin = f.version
        limit 1
        for no key update skip locked
    ) j
    where exists (select from term)
),
running as materialized (
    select d.job_id
    from duly.held_runs one
    join due d on d.job_id = one.job_id
    where d.unsure and not duly.has_ended(one.job_id, one.scheduled_at)
),
busy as materialized (
    -- Jobs with an unfinished earlier run. One probe finds a queued run. A running one is in a claim, but so are many
    -- that have ended, and reading all claims pays only for many jobs: for few, history is asked first whether the last
    -- run has ended.
    select d.job_id,
        case when d.extra_at is null or not duly.has_ended(d.job_id, d.last_run_at) then d.last_run_at
            else d.extra_at end as busy_with,
        (select count(*) from duly.runs w where w.job_id = d.job_id and w.state = 'waiting') as waiting
    from due d
    where d.overlap <> 'parallel' and coalesce(d.last_run_at, d.extra_at) is not null
        and case
            when (select true from duly.runs r where r.job_id = d.job_id limit 1) then true
            when d.unsure then d.job_id in (select job_id from running)
            when cardinality($3::uuid[]) >= 100 and not (d.job_id in (select duly.claimed_jobs()))
                then false
            when duly.last_runs_ended(d.job_id, d.last_run_at, d.extra_at) then false
            -- Otherwise it is running, or so old that its partition is gone.
            else d.job_id in (select duly.claimed_jobs())
        end
),
planned as materialized (
    select d.job_id, d.queue, d.priority, d.overlap, r.scheduled_at, r.flags, b.busy_with,
        case
            when d.overlap = 'parallel' then 'queued'
            -- With RUN_ALL (missed and serial) each of them runs: it waits for the one before.
            when d.overlap = 'skip' and b.job_id is not null and not (duly.is_missed(r.flags) and duly.is_serial(r.flags)) then 'skipped'
            when b.job_id is null and r.number = 1 then 'queued'
            -- max_queued counts waiting runs; where nothing is unfinished, the first run of this fire does not wait.
            when d.overlap = 'queue'
                and coalesce(b.waiting, 0) + r.number - (b.job_id is null)::int > d.max_queued then 'skipped'
            else 'waiting'
        end as state
    from due d
    join unnest($8::uuid[], $9::timestamptz[], $10::smallint[], $11::int[]) as r (job_id, scheduled_at, flags, number)
        on r.job_id = d.job_id
    left join busy b on b.job_id = d.job_id
),
live as (
    insert into duly.runs
        (job_id, scheduled_at, run_at, fired_at, epoch, shard, priority, attempt, flags, state, queue)
    select p.job_id, p.scheduled_at, case when p.state = 'waiting' then 'infinity' else clock.now end, clock.now, $2,
        $1, p.priority, 0, p.flags, p.state, p.queue
    from planned p cross join clock
    where p.state <> 'skipped'
    returning job_id, scheduled_at, queue
),
skipped as (
    insert into duly.history
        (job_id, scheduled_at, fired_at, finished_at, epoch, attempt, flags, status, note)
    select p.job_id, p.scheduled_at, clock.now, clock.now, $2, 0, p.flags, 'skipped',
        jsonb_build_object('reason', 'overlap', 'overlap', p.overlap, 'unfinished', p.busy_with)
    from planned p cross join clock
    where p.state = 'skipped'
    on conflict do nothing
),
dropped as materialized (
    select d.job_id, m.first, m.last, m.count, m.reason
    from due d
    join unnest($12::uuid[], $13::timestamptz[], $14::timestamptz[], $15::int[], $16::text[])
        as m (job_id, first, last, count, reason) on m.job_id = d.job_id
),
missed as (
    insert into duly.history
        (job_id, scheduled_at, fired_at, finished_at, epoch, attempt, status, note)
    select m.job_id, m.first, clock.now, clock.now, $2, 0, 'missed',
        jsonb_build_object('reason', m.reason, 'count', m.count, 'first', m.first, 'last', m.last)
    from dropped m cross join clock
    where m.reason <> 'deferred'
    on conflict do nothing
),
deferred as (
    insert into duly.catch_ups (job_id, first_at, last_at, count, served_at, shard, epoch)
    select m.job_id, m.first, m.last, m.count, clock.now, $1, $2
    from dropped m cross join clock
    where m.reason = 'deferred'
),
moved as (
    update duly.jobs j
    set next_run_at = d.next_run_at,
        last_run_at = coalesce(born.last, j.last_run_at),
        extra_at = case when b.job_id is not null then j.extra_at end,
        run_count = j.run_count + coalesce(born.fired, 0) + coalesce(later.count, 0),
        status = case when d.next_run_at is null then 'ended' else j.status end
    from due d
    left join (
        select job_id, max(scheduled_at) filter (where state <> 'skipped') as last, count(*)::int as fired
        from planned
        group by job_id
    ) born on born.job_id = d.job_id
    left join dropped later on later.job_id = d.job_id and later.reason = 'deferred'
    left join busy b on b.job_id = d.job_id
    where j.job_id = d.job_id and j.job_id = any (array(select job_id from due))
    returning j.job_id
)
select array_agg(moved.job_id) as moved, exists (select from term) as led, (select count(*) from live) as live,
    (select count(pg_notify('duly_work', queue)::text) from (select distinct queue from live) q) as notified
from moved
