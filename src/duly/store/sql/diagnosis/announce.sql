-- A notification on a channel of its own, for a listener that waits for it.
--   $1 channel
select pg_notify($1, '')
