-- Inserts startable runs, oldest first, each of a job of its own, without a client.
--   $1 number of runs
with made as materialized (
    select n, duly.new_job_id(clock_timestamp()) as job_id, duly.now() - ($1 - n) * interval '1 microsecond' as due
    from generate_series(1, $1::int) as n
    offset 0
),
job as (
    insert into duly.jobs (job_id, created_at, updated_at, last_run_at, shard, priority, status, kind, tenant, name,
        queue, handler, schedule, timezone, payload)
    select job_id, due, due, due, duly.shard_of(job_id, store.shard_count), 5, 'ended', 'once', 'default', 'noop',
        'default', 'noop', 'now', 'UTC', jsonb_build_object('n', n)
    from made
    cross join duly.store
)
insert into duly.runs (job_id, scheduled_at, run_at, fired_at, shard, priority, attempt, state, queue)
select job_id, due, due, due, duly.shard_of(job_id, store.shard_count), 5, 0, 'queued', 'default'
from made
cross join duly.store
