-- How full the store is. Estimates and bounded counts only: this is asked again and again by people who watch.
with clock as materialized (
    select duly.now() as now
)
select
    greatest((select reltuples from pg_class where oid = 'duly.jobs'::regclass), 0)::bigint as jobs,
    (select count(*) from (select from duly.runs where state = 'queued' limit 100000) r) as queued,
    (select count(*) from (select from duly.runs where state = 'retrying' limit 100000) r) as retrying,
    (select count(*) from (select from duly.runs where state = 'waiting' limit 100000) r) as waiting,
    (
        select coalesce(sum(cardinality(job_ids) - cardinality(released)), 0)::bigint from duly.live_claims
    ) as running,
    (select count(*) from (select from duly.dead_letters limit 100000) d) as dead_letters,
    overdue.count as overdue,
    overdue.oldest as oldest_overdue_at
from (
    select count(*) as count, min(next_run_at) as oldest
    from (
        select j.next_run_at
        from duly.shards s
        cross join clock
        cross join lateral (
            select next_run_at from duly.jobs
            where shard = s.shard and next_run_at <= clock.now
            order by next_run_at
            limit 1000
        ) j
    ) late
) overdue
