-- Takes up to $3 startable runs under one lease: highest priority first, then by due time.
--   $1 worker_id  $2 lease in seconds  $3 limit  $4, $5 lanes: queue and priority, in the order to read them
--   $6 floors: the run_at at which to start in each lane; null: at its beginning
-- Each lane is its own index descent, which stops at the first run that may not start yet; the outer limit stops the
-- walk over the lanes. The last row is not a run. It tells the database's time (`now`), when the next run of these
-- lanes may start (`next_run_at`), and that the first `emptied_lanes` lanes hold no more runs startable at
-- `emptied_to`. The next claim may start there: while a long query keeps vacuum from removing them, deleted runs lie
-- before the head of their lane, and walking over 100,000 of them takes 25 ms. `took` is the time spent in the
-- database, without the network. The limit is hidden from the planner: if it sees the limit, PostgreSQL finds a plan
-- for that very limit so much cheaper on a deep queue that it plans every claim anew, which takes as long as a claim of
-- 100 itself (1.6 × in all, measured).
with clock as materialized (
    select duly.now() as now
),
picked as materialized (
    select head.ctid, head.run_at, lane.number as lane
    from unnest($4::text[], $5::smallint[], $6::timestamptz[]) with ordinality as lane (queue, priority, floor, number)
    cross join lateral (
        select r.ctid, r.run_at
        from duly.runs r
        where r.queue = lane.queue and r.priority = lane.priority
            and r.run_at >= coalesce(lane.floor, '-infinity')
            and r.run_at <= (select now from clock)
        order by r.run_at
        limit (select $3::bigint)
        for update skip locked
    ) head
    limit (select $3::bigint)
),
reached as (
    -- The lane and time at which the limit ended the walk; without that, all lanes up to now.
    select case when last.runs < $3 then cardinality($4::text[]) else last.lane::int end as lane,
        case when last.runs < $3 then clock.now
            else (select max(run_at) from picked where picked.lane = last.lane) end as at
    from (select count(*) as runs, max(lane) as lane from picked) last
    cross join clock
),
taken as (
    -- By ctid, as an array: a join would let the planner read the whole queue to find a thousand rows.
    delete from duly.runs r
    where r.ctid = any (array(select ctid from picked))
    returning r.job_id, r.scheduled_at, r.fired_at, r.epoch, r.attempt, r.flags
),
numbered as materialized (
    select row_number() over () as ordinal, job_id, scheduled_at, fired_at, epoch,
        (attempt + 1)::smallint as attempt, flags
    from taken
),
claim as (
    insert into duly.claims
        (claim_id, worker_id, claimed_at, lease_until, job_ids, scheduled_ats, fired_ats, epochs, attempts, flags)
    select duly.new_claim_id(), $1, min(clock.now), min(clock.now) + make_interval(secs => $2),
        array_agg(job_id), array_agg(scheduled_at), array_agg(fired_at), array_agg(epoch),
        array_agg(attempt), array_agg(flags)
    from numbered cross join clock
    having count(*) > 0
    returning claim_id
)
select claim.claim_id, n.ordinal::int as ordinal, n.job_id, n.scheduled_at, n.attempt,
    -- A retry that was on its way back when its job was cancelled: the worker ends it without starting it.
    case when j.status = 'cancelled' then duly.as_cancelled(n.flags) else n.flags end as flags,
    j.name, j.handler, j.target, j.payload, j.payload_ref, j.timezone, j.policy,
    j.aside, null::timestamptz as next_run_at,
    null::timestamptz as now, null::interval as took, null::int as emptied_lanes, null::timestamptz as emptied_to
from numbered n
cross join claim
-- On a store without step 0007 the column `trace` below is this one: a job's own would come first.
cross join (select null::text as trace) absent
-- Lateral with a limit: always one index probe per run, however few jobs the planner believes there are.
cross join lateral (
    select name, handler, target, payload, payload_ref, timezone, policy, tenant, status,
        -- The tenant (only targets need it), the queue and the context (only traces do; see duly/tracing/context.py), in
        -- one column that is null for most runs: three columns took a tenth of the worker's time for a run, measured.
        case when target is not null or kind <> 'once' or trace is not null then
            concat(case when target is not null then tenant end, E'\n', queue, E'\n',
                case when kind <> 'once' then '+' end, trace)
        end as aside
    from duly.jobs
    where job_id = n.job_id
    limit 1
) j
union all
select null, null, null, null, null, null, null, null, null, null, null, null, null, null, min(ahead.run_at),
    (select now from clock), clock_timestamp() - statement_timestamp(), (select lane from reached), (select at from reached)
from unnest($4::text[], $5::smallint[]) as lane (queue, priority)
cross join lateral (
    select r.run_at
    from duly.runs r
    where r.queue = lane.queue and r.priority = lane.priority and r.run_at > (select now from clock)
    order by r.run_at
    limit 1
) ahead
where ahead.run_at < 'infinity'
