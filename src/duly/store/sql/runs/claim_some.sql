-- As `claim`, without the runs of some tasks, which are left to other workers: the same statement but for the lines
-- between "Only here" and "Until here". In `claim` itself they would cost every worker 20 µs, and few workers need
-- them.
--   $7 tasks whose runs are not taken
-- Only the first 1,000 runs of each lane are read: the queue may hold a million runs of those tasks.
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
            -- Only here:
            and r.run_at <= coalesce((
                select far.run_at
                from duly.runs far
                where far.queue = lane.queue and far.priority = lane.priority
                    and far.run_at >= coalesce(lane.floor, '-infinity')
                order by far.run_at
                offset 1000
                limit 1
            ), 'infinity')
            and (select j.target is not null or j.handler <> all ($7::text[]) from duly.jobs j where j.job_id = r.job_id)
            -- Until here.
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
    -- Only targets need the tenant.
    case when j.target is not null then j.tenant end as tenant, null::timestamptz as next_run_at,
    null::timestamptz as now, null::interval as took, null::int as emptied_lanes, null::timestamptz as emptied_to
from numbered n
cross join claim
-- Lateral with a limit: always one index probe per run, however few jobs the planner believes there are.
cross join lateral (
    select name, handler, target, payload, payload_ref, timezone, policy, tenant, status
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
