-- Finds claims to rescue: almost always none. Also returns whether there is any claim at all, the time, the number of
-- dead rows among the claims, and how long this took in the database.
--   $1 limit  $2 leases that ended before this are skipped; null: none is  $3 read all claims instead
-- The index of leases answers at once, unless deleted claims lie in it: while a snapshot is held, they cannot be
-- skipped there. Reading all claims starts at the floor.
with live as materialized (
    select claim_id, lease_until from duly.live_claims where $3::boolean
)
select case
        when $3::boolean then array(
            select claim_id from live where lease_until < (select duly.now()) order by lease_until limit $1
        )
        else array(
            select claim_id
            from duly.claims
            where lease_until < (select duly.now()) and lease_until >= coalesce($2::timestamptz, '-infinity')
            order by lease_until
            limit $1
        )
    end as expired,
    case when $3::boolean then exists (select from live) else exists (select from duly.live_claims) end as any_claims,
    duly.now() as now,
    pg_stat_get_dead_tuples('duly.claims'::regclass) as dead,
    extract(epoch from clock_timestamp() - statement_timestamp())::float8 as took
