-- Fires the simple jobs, which are almost all: one occurrence, on time, and no earlier run unfinished. One step of the
-- schedule and one run each; fires/fire.sql does the rest. All shards of a leader are fired in one statement: a steady
-- load is spread over all of them, and a statement per shard costs several times what its few jobs do.
--   $1 shards  $2 epochs of the leader's terms
--   $3 ctid and $4 version of the job's row when fires/due.sql read it, $5 job_id, $6 expected next_run_at,
--   $7 new next_run_at, $8 flags of the run, $9 shard, $10 the epoch of its term
-- A shard whose epoch was raised meanwhile is left out; the others are fired all the same. The overlap was decided by
-- that read. It still holds if the row is the very one that was read: a statement that starts a run of a job out of
-- turn (trigger, redrive, catch-up, repair) writes the job's row in the same transaction. The ctid needs no index
-- probe, and the version proves that no other row has taken that place. (The row's shard is not compared again: it
-- would only tempt the planner to read the whole shard.)
with clock as materialized (
    select duly.now() as now
),
term as materialized (
    -- In the order in which every statement locks shards.
    select s.shard
    from unnest($1::smallint[], $2::int[]) as t (shard, epoch)
    join duly.shards s on s.shard = t.shard and s.epoch = t.epoch
    order by s.shard
    for share of s
),
free as materialized (
    -- A locked job is skipped and does not hold up the others.
    select f.ctid, f.expected, f.next_run_at, f.flags, f.shard, f.epoch
    from unnest($3::tid[], $4::xid[], $5::uuid[], $6::timestamptz[], $7::timestamptz[], $8::smallint[],
        $9::smallint[], $10::int[]) as f (ctid, version, job_id, expected, next_run_at, flags, shard, epoch)
    join duly.jobs j on j.ctid = f.ctid
    where j.xmin = f.version and j.job_id = f.job_id and j.next_run_at = f.expected
        and f.shard = any (array(select shard from term))
    for no key update of j skip locked
),
moved as (
    update duly.jobs j
    set next_run_at = f.next_run_at, last_run_at = f.expected, extra_at = null, run_count = j.run_count + 1,
        status = case when f.next_run_at is null then 'ended' else j.status end
    from free f
    where j.ctid = f.ctid
    returning j.job_id, f.expected, f.flags, f.shard, f.epoch, j.queue, j.priority
),
live as (
    insert into duly.runs
        (job_id, scheduled_at, run_at, fired_at, epoch, shard, priority, attempt, flags, state, queue)
    select m.job_id, m.expected, greatest(m.expected, clock.now), clock.now, m.epoch, m.shard, m.priority, 0, m.flags,
        'queued', m.queue
    from moved m cross join clock
    returning job_id, queue
)
select array_agg(job_id) as moved, (select array_agg(shard) from term) as led,
    (select count(pg_notify('duly_work', queue)::text) from (select distinct queue from live) q) as notified
from live
