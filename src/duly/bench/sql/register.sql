-- Hourly jobs by the million, without a client in between.
--   $1 how many  $2 when the first is due  $3 over how many seconds they are spread; 0: all at that moment
insert into duly.jobs (job_id, next_run_at, created_at, updated_at, start_at, shard, priority, status, kind, tenant, name,
    queue, handler, schedule, timezone, payload)
select job_id, due, duly.now(), duly.now(), due, duly.shard_of(job_id, store.shard_count), 5, 'active', 'interval',
    'default', 'registered ' || n, 'default', 'noop', 'every 1h', 'UTC', jsonb_build_object('n', n)
from (
    -- In an order that has nothing to do with when they are due, as if they had been registered over years.
    select n, duly.new_token() as job_id, $2::timestamptz + random() * make_interval(secs => $3) as due
    from generate_series(1, $1::int) as n
    offset 0
) made
cross join duly.store
