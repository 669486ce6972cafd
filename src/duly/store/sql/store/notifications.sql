-- How full the server's queue of notifications is, from 0 to 1. The question itself makes room: a queue that was full
-- stays so after the listener that held it up has gone, until somebody asks this, because no NOTIFY gets through to do it.
select pg_catalog.pg_notification_queue_usage() as usage
