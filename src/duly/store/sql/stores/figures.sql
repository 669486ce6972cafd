-- Figures for a monitoring system, which asks again and again: every part is bounded. A row is one figure of one thing.
--   $1 maximum number of queues  $2 maximum number of rows of each kind to count
with recursive clock as materialized (
    select duly.now() as now
),
-- From one queue to the next by the index of lanes: reading all runs to find their few queues would take seconds.
queue (name, number) as (
    select (select r.queue from duly.runs r order by r.queue limit 1), 1
    union all
    select (select r.queue from duly.runs r where r.queue > queue.name order by r.queue limit 1), queue.number + 1
    from queue
    where queue.name is not null and queue.number < $1
)
select 'queue_depth' as figure, queue.name as label, depth.runs as value
from queue
cross join lateral (
    select count(*) as runs
    from (
        select
        from generate_series(0, 9) as lane (priority)
        cross join clock
        cross join lateral (
            select from duly.runs r
            where r.queue = queue.name and r.priority = lane.priority::smallint and r.run_at <= clock.now
            limit $2
        ) startable
        limit $2
    ) counted
) depth
where queue.name is not null
union all
select 'dead_letters', null, count(*)
from (select from duly.dead_letters limit $2) d
union all
select 'shards_owned', n.name, count(s.shard)
from duly.nodes n
cross join clock
left join duly.shards s on s.node_id = n.node_id
where n.kind = 'scheduler' and n.lease_until > clock.now
group by n.name
union all
select 'shards_unowned', null, count(*)
from duly.shards s
cross join clock
where not exists (select from duly.nodes n where n.node_id = s.node_id and n.lease_until > clock.now)
union all
select 'due_jobs', s.shard::text, late.jobs
from duly.shards s
cross join clock
cross join lateral (
    select count(*) as jobs
    from (
        select from duly.jobs j
        where j.shard = s.shard and j.next_run_at <= clock.now
        limit least($2, 10000)
    ) counted
) late
union all
select 'live_nodes', kind.name, (
    select count(*) from duly.nodes n where n.kind = kind.name and n.lease_until > clock.now
)
from (values ('scheduler'), ('worker')) as kind (name)
cross join clock
union all
-- In microseconds, as every time inside Duly. The first run of each lane, and the first job of each shard, tell.
select 'oldest_waiting', null, coalesce(max(extract(epoch from clock.now - head.run_at) * 1000000::numeric), 0)::bigint
from clock
cross join queue
cross join generate_series(0, 9) as lane (priority)
cross join lateral (
    select r.run_at
    from duly.runs r
    where r.queue = queue.name and r.priority = lane.priority::smallint and r.run_at <= clock.now
    order by r.run_at
    limit 1
) head
union all
select 'oldest_due', null, coalesce(max(extract(epoch from clock.now - late.next_run_at) * 1000000::numeric), 0)::bigint
from clock
cross join duly.shards s
cross join lateral (
    select j.next_run_at
    from duly.jobs j
    where j.shard = s.shard and j.next_run_at <= clock.now
    order by j.next_run_at
    limit 1
) late
