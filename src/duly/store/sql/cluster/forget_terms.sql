-- Deletes terms that ended long ago, and the oldest of a shard that had very many.
--   $1 seconds an ended term is kept  $2 maximum number of terms kept per shard  $3 limit
-- A term ended when the next of its shard began: the last term that began before the retention was still in force
-- within it, so it and all later ones stay. A shard's last term always stays: a restored shard continues from its
-- epoch.
with clock as materialized (
    select duly.now() as now
),
kept as (
    select s.shard, last.epoch as last, greatest(
        last.epoch - $2::int + 1,
        (
            select t.epoch from duly.terms t
            where t.shard = s.shard and t.started_at < clock.now - make_interval(secs => $1)
            order by t.epoch desc
            limit 1
        )
    ) as first
    from duly.shards s
    cross join clock
    cross join lateral (
        select t.epoch from duly.terms t where t.shard = s.shard order by t.epoch desc limit 1
    ) last
),
old as (
    select t.shard, t.epoch
    from kept
    cross join lateral (
        select t.shard, t.epoch from duly.terms t
        where t.shard = kept.shard and t.epoch < least(kept.first, kept.last)
        order by t.epoch
        limit $3
    ) t
    limit $3
),
gone as (
    delete from duly.terms t using old where t.shard = old.shard and t.epoch = old.epoch returning 1
)
select count(*) as forgotten from gone
