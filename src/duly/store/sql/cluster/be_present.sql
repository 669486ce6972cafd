-- Takes a lock that lives as long as this session and says that its node is alive.   $1 first key  $2 second key
-- False: another session has this key.
select pg_try_advisory_lock($1::int, $2::int) as held
