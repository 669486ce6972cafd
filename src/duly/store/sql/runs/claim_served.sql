-- As `claim`, for a worker that takes only some runs: those of some tenants, or not those of some tasks. The same
-- statement but for `lane`, `ends` and the lines between "Only here" and "Until here". A run carries neither its tenant
-- nor its task, so its job is read, and a million runs that are left to others may lie before the worker's own: one
-- stretch of each lane is read, and the last row tells where it ended (`ends`; null: at a run that may not start yet),
-- so that the next claim continues there. Runs with the same run_at are read together, however many they are.
--   $7 tasks whose runs are not taken  $8 tenants; null: all  $9 length of a stretch in runs
with clock as materialized (
    select duly.now() as now
),
-- Only here:
lane as materialized (
    select asked.*, (
        select far.run_at
        from duly.runs far
        where far.queue = asked.queue and far.priority = asked.priority
            and far.run_at >= coalesce(asked.floor, '-infinity')
            and far.run_at <= (select now from clock)
        order by far.run_at
        offset $9::bigint
        limit 1
    ) as far
    from unnest($4::text[], $5::smallint[], $6::timestamptz[]) with ordinality as asked (queue, priority, floor, number)
),
-- Until here.
picked as materialized (
    select head.ctid, head.run_at, lane.number as lane
    from lane
    cross join lateral (
        select r.ctid, r.run_at
        from duly.runs r
        where r.queue = lane.queue and r.priority = lane.priority
            and r.run_at >= coalesce(lane.floor, '-infinity')
            -- Only here:
            and r.run_at <= coalesce(lane.far, (select now from clock))
            and (
                select (j.target is not null or j.handler <> all ($7::text[]))
                    and ($8::text[] is null or j.tenant = any ($8::text[]))
                from duly.jobs j
                where j.job_id = r.job_id
            )
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
    j.aside, null::timestamptz as next_run_at,
    null::timestamptz as now, null::interval as took, null::int as emptied_lanes, null::timestamptz as emptied_to,
    null::timestamptz[] as ends
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
    (select now from clock), clock_timestamp() - statement_timestamp(), (select lane from reached), (select at from reached),
    array(select far from lane order by number)
from unnest($4::text[], $5::smallint[]) as lane (queue, priority)
cross join lateral (
    -- Only here: the next of the worker's own, or where the look for one ended.
    select case
            when bool_or(soon.served) then min(soon.run_at) filter (where soon.served)
            when count(*) = 300 then max(soon.run_at)
        end as run_at
    from (
        select r.run_at, (
                select (j.target is not null or j.handler <> all ($7::text[]))
                    and ($8::text[] is null or j.tenant = any ($8::text[]))
                from duly.jobs j
                where j.job_id = r.job_id
            ) as served
        from duly.runs r
        where r.queue = lane.queue and r.priority = lane.priority and r.run_at > (select now from clock)
            and r.run_at < 'infinity'
        order by r.run_at
        limit 300
    ) soon
    -- Until here.
) ahead
where ahead.run_at < 'infinity'
