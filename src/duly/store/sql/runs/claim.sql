-- Take up to $3 startable runs under one lease. Highest priority first, then by due time.
--   $1 worker_id  $2 lease in seconds  $3 limit  $4, $5 lanes: queue and priority, in the order to look at them
--   $6 floors: where to begin in each lane; null: at its beginning
-- Each lane is its own index descent that stops at the first run that may not start yet; the outer limit stops the
-- walk over the lanes. The last row has no job: it tells what time it was, when the next run of these lanes may start,
-- and which lanes (`ordinal`: so many of them) are now empty up to which moment (`scheduled_at`). That is where a next
-- claim may begin: as long as a long query keeps vacuum from removing them, the runs that are gone lie before the head
-- of their lane, and to walk over 100,000 of them takes 25 ms. And it tells how long all this took here, without the
-- way to the worker.
-- The limit is hidden from the planner: seeing it, PostgreSQL finds a plan for this very limit so much cheaper on a deep
-- queue that it makes one for every claim, which takes as long as a claim of 100 itself (1.6 × in all, measured).
with clock as materialized (
    select duly.now() as now
),
picked as materialized (
    select head.ctid as place, head.run_at, lane.number as lane
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
    -- Where the limit ended the walk, or all of it.
    select case when last.runs < $3 then cardinality($4::text[]) else last.lane::int end as lane,
        case when last.runs < $3 then clock.now
            else (select max(run_at) from picked where picked.lane = last.lane) end as at
    from (select count(*) as runs, max(lane) as lane from picked) last
    cross join clock
),
taken as (
    -- By physical place, as an array: a join would let the planner read the whole queue to find a thousand rows.
    delete from duly.runs r
    where r.ctid = any (array(select place from picked))
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
    -- A retry that was on its way back when its job was cancelled: the worker ends it unbegun.
    case when j.status = 'cancelled' then duly.as_cancelled(n.flags) else n.flags end as flags,
    j.name, j.handler, j.target, j.payload, j.payload_ref, j.timezone, j.policy,
    -- Of tasks nobody asks for it.
    case when j.target is not null then j.tenant end as tenant, null::timestamptz as next_run_at,
    null::timestamptz as now, null::interval as took
from numbered n
cross join claim
-- Lateral with a limit: always one index probe a run, however few jobs the planner believes there are.
cross join lateral (
    select name, handler, target, payload, payload_ref, timezone, policy, tenant, status
    from duly.jobs
    where job_id = n.job_id
    limit 1
) j
union all
select null, (select lane from reached), null, (select at from reached), null, null, null, null, null, null, null, null,
    null, null, min(ahead.run_at), (select now from clock), clock_timestamp() - statement_timestamp()
from unnest($4::text[], $5::smallint[]) as lane (queue, priority)
cross join lateral (
    select r.run_at
    from duly.runs r
    where r.queue = lane.queue and r.priority = lane.priority and r.run_at > (select now from clock)
    order by r.run_at
    limit 1
) ahead
where ahead.run_at < 'infinity'
