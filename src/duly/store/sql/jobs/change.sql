-- Changes a job: the caller read it, computed its new fields, and writes them all, unless another change came first.
-- Used for a client's edit, and for an application whose code declares the job differently than before.
--   $1 job_id  $2 tenant  $3 version it was read with
--   $4 replanned?  if so: $5 next_run_at it was read with  $6 its new one
--   $7 what is noted of the change, as JSON: the old values of the changed fields, who declared it, and under `audit`
--      who acts (`Actor.note`) with the fields before and after
--   $8, $9, $10 first, last and count of overdue occurrences that the change gives up; count 0: there are none
--   $11 the kind of change: 'changed', or 'redefined' by code; then also $14 fingerprint
--   $12 handler; null: it stays  $13 its target
--   $15 name  $16 payload  $17 payload_ref  $18 kind  $19 schedule  $20 timezone  $21 start_at  $22 end_at
--   $23 max_runs  $24 queue  $25 priority  $26 policy  $27 labels
-- A fire does not raise the version, so a new plan also names the next_run_at it was made from: an occurrence that
-- fires in between is neither lost nor repeated.
with clock as materialized (
    select duly.now() as now
),
before as materialized (
    select job_id, next_run_at, queue, priority, policy, jsonb_build_object('kind', kind, 'schedule', schedule,
        'timezone', timezone, 'start_at', start_at, 'end_at', end_at, 'dst_gap', policy -> 'dst_gap',
        'dst_fold', policy -> 'dst_fold', 'jitter_seconds', policy -> 'jitter_seconds') as timing
    from duly.jobs
    where job_id = $1 and tenant = $2 and version = $3 and status <> 'cancelled'
        and (not $4::boolean or next_run_at is not distinct from $5::timestamptz)
    for no key update
),
changed as (
    update duly.jobs j
    set name = $15, payload = $16::jsonb, payload_ref = $17, kind = $18, schedule = $19, timezone = $20,
        start_at = $21, end_at = $22, max_runs = $23, queue = $24, priority = $25, policy = $26::jsonb,
        labels = $27::jsonb,
        handler = coalesce($12::text, j.handler),
        target = case when $12::text is not null then $13::jsonb else j.target end,
        fingerprint = case when $11::text = 'redefined' then $14 else j.fingerprint end,
        next_run_at = case when $4::boolean then $6::timestamptz else j.next_run_at end,
        status = case
            -- Code may give an ended job new occurrences, and end one that had more.
            when not $4::boolean or j.status = 'paused' then j.status when $6::timestamptz is null then 'ended' else 'active'
        end,
        -- Not before the last run that was allowed to overlap, even if the clock has gone back: a fire compares them.
        updated_at = case
            when duly.overlap(before.policy) = 'parallel' then greatest(clock.now, j.last_run_at, j.extra_at) else clock.now
        end,
        version = version + 1
    from before cross join clock
    where j.job_id = before.job_id
    returning j.*
),
-- audited:
audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select changed.updated_at, changed.tenant, $7::jsonb -> 'audit' -> 'who',
        case when $11::text = 'redefined' then 'redefine' else 'change' end, 'job', changed.job_id::text, changed.job_id,
        $7::jsonb -> 'audit' -> 'before', $7::jsonb -> 'audit' -> 'after', $7::jsonb -> 'audit' ->> 'reason'
    from changed
    where $7::jsonb -> 'audit' ? 'who'
),
-- end audited
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select changed.job_id, changed.updated_at, $11::text,
        $7::jsonb - 'audit'::text || jsonb_build_object('next_run_at', before.next_run_at)
        || case when $4::boolean then jsonb_build_object('before', before.timing) else '{}' end
    from changed join before using (job_id)
),
given_up as (
    -- Late occurrences that still wait are of the old schedule too.
    delete from duly.catch_ups c
    using changed
    where c.job_id = changed.job_id and $4::boolean
    returning c.job_id, c.first_at, c.last_at, c.count
),
missed as (
    insert into duly.history (job_id, scheduled_at, finished_at, attempt, status, note)
    select job_id, first, clock.now, 0, 'missed',
        jsonb_build_object('reason', 'changed', 'count', count, 'first', first, 'last', last)
    from (
        select job_id, first_at, last_at, count from given_up
        union all
        select job_id, $8::timestamptz, $9::timestamptz, $10::int from changed where $10::int > 0
    ) as lost (job_id, first, last, count)
    cross join clock
    on conflict do nothing
),
followed as (
    -- Queued runs move to the job's new queue and priority. Runs that might overlap, and now may not, are marked as
    -- serial, for the runs after them (jobs/put_in_order.sql).
    update duly.runs r
    set queue = changed.queue, priority = changed.priority,
        flags = case when after.serial then duly.as_serial(r.flags) else r.flags end
    from changed
    join before on before.job_id = changed.job_id
    cross join lateral (
        select duly.overlap(before.policy) = 'parallel' and duly.overlap(changed.policy) <> 'parallel'
    ) as after (serial)
    where r.job_id = changed.job_id
        and ((before.queue, before.priority) <> (changed.queue, changed.priority) or (after.serial and not duly.is_serial(r.flags)))
    returning r.queue
),
still_parked as (
    update duly.parked p set version = changed.version from changed where p.job_id = changed.job_id and p.version = $3
),
notified as (
    select count(pg_notify('duly_work', queue)::text) as work from (select distinct queue from followed) q
),
announced as (
    select duly.announce_due(array_agg(shard), array_agg(job_id), array_agg(next_run_at)) from changed where $4::boolean
)
select job_id, shard, tenant, name, handler, target, payload, payload_ref, kind, schedule, timezone, start_at, end_at,
    max_runs, queue, priority, policy, dedupe_key, labels, status, status_reason, next_run_at, last_run_at, run_count,
    created_at, updated_at, version
from changed cross join notified cross join announced
