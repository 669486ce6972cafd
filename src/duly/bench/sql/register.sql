-- Registers millions of recurring jobs without a client.
--   $1 number of jobs  $2 due time of the first  $3 seconds over which they are spread; 0: all due at once
--   $4 handler  $5 schedule, an interval  $6 policy, as it is stored
insert into duly.jobs (job_id, next_run_at, created_at, updated_at, start_at, shard, priority, status, kind, tenant, name,
    queue, handler, schedule, timezone, payload, policy)
select job_id, due, duly.now(), duly.now(), due, duly.shard_of(job_id, store.shard_count), 5, 'active', 'interval',
    'default', 'registered ' || n, 'default', $4, $5, 'UTC', jsonb_build_object('n', n), $6::jsonb
from (
    -- In an order unrelated to their due times, as if they had been registered over years.
    select n, duly.new_job_id(clock_timestamp()) as job_id, $2::timestamptz + random() * make_interval(secs => $3) as due
    from generate_series(1, $1::int) as n
    offset 0
) made
cross join duly.store
