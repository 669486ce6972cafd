-- Almost every fire: jobs with one occurrence, on time, and no earlier run unfinished. One step of the schedule and one
-- run each; whatever is not as simple is for fires/fire.sql.
--   $1 shard  $2 epoch of the leader's term
--   $3 place and $4 version of the job's row when fires/due.sql looked at it, $5 job_id, $6 expected next_run_at,
--   $7 new next_run_at, $8 flags of the run
-- The overlap was decided by that look. It still holds if the row is the very one that was seen: whatever begins a run
-- of a job out of turn (trigger, redrive, catch-up, repair) writes the job's row in the same transaction. By place there
-- is nothing to look up, and the version makes sure that nothing else has come to stand there. (The shard is not compared
-- again: it would only tempt the planner to read all of it.)
with clock as materialized (
    select duly.now() as now
),
term as materialized (
    select epoch from duly.shards where shard = $1 and epoch = $2 for share
),
moved as (
    update duly.jobs j
    set next_run_at = f.next_run_at, last_run_at = f.expected, extra_at = null, run_count = j.run_count + 1,
        status = case when f.next_run_at is null then 'ended' else j.status end
    from unnest($3::tid[], $4::xid[], $5::uuid[], $6::timestamptz[], $7::timestamptz[], $8::smallint[])
        as f (place, version, job_id, expected, next_run_at, flags)
    where j.ctid = f.place and j.xmin = f.version and j.job_id = f.job_id and j.next_run_at = f.expected
        and exists (select from term)
    returning j.job_id, f.expected, f.flags, j.queue, j.priority
),
live as (
    insert into duly.runs
        (job_id, scheduled_at, run_at, fired_at, epoch, shard, priority, attempt, flags, state, queue)
    select m.job_id, m.expected, greatest(m.expected, clock.now), clock.now, $2, $1, m.priority, 0, m.flags, 'queued',
        m.queue
    from moved m cross join clock
    returning job_id, queue
)
select array_agg(job_id) as moved, exists (select from term) as led,
    (select count(pg_notify('duly_work', queue)::text) from (select distinct queue from live) q) as told
from live
