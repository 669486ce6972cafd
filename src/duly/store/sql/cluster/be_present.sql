-- A lock that lives as long as this session and says that its node does.   $1 first key  $2 second key
-- False: somebody else's session has this key.
select pg_try_advisory_lock($1::int, $2::int) as held
