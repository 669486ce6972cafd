-- Is there a claim to rescue? The answer is almost always no. And is there any claim at all? Also what time it is, how
-- many dead rows lie among the claims, and how long this took here.
--   $1 leases that ended before this are not looked at; null: all are
select exists (
        select from duly.claims where lease_until < (select duly.now()) and lease_until >= coalesce($1::timestamptz, '-infinity')
    ) as expired,
    exists (select from duly.live_claims) as held, duly.now() as now,
    pg_stat_get_dead_tuples('duly.claims'::regclass) as dead,
    extract(epoch from clock_timestamp() - statement_timestamp())::float8 as took
