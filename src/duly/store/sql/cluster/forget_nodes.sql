-- Deletes nodes and workers that were last alive long ago, and the oldest if there are very many. Never those that lead
-- a shard, hold a claim, are named by a kept term, or were alive within the last hour.
--   $1 seconds a node is kept  $2 maximum number kept  $3 limit
with clock as materialized (
    select duly.now() as now
),
bound as materialized (
    select least(
        clock.now - interval '1 hour',
        greatest(
            clock.now - make_interval(secs => $1),
            (select n.lease_until from duly.nodes n order by n.lease_until desc offset $2 limit 1)
        )
    ) as at
    from clock
),
named as materialized (
    select node_id from duly.terms
    union
    select node_id from duly.shards
    union
    select worker_id from duly.live_claims
),
old as (
    select n.node_id
    from duly.nodes n
    where n.lease_until <= (select at from bound) and not exists (select from named where named.node_id = n.node_id)
    order by n.lease_until
    limit $3
    for update of n skip locked
),
gone as (
    delete from duly.nodes n using old where n.node_id = old.node_id returning 1
)
select count(*) as forgotten from gone
