-- The fill level of the server's notification queue, from 0 to 1. Asking also frees space: a full queue stays full
-- after the listener that held it up has gone, until this is asked, because no NOTIFY gets through to free it.
select pg_catalog.pg_notification_queue_usage() as usage
