-- How full the server's notification queue is, from 0 to 1, the sessions of this database's Duly that listen, and who
-- holds the queue up, as far as that is seen: a session that does not read its connection, else the oldest transaction.
-- `listening`: null if this user does not see what other users' sessions do.
--   $1 name of the sessions that listen
select pg_notification_queue_usage() as usage,
    (
        select case when count(*) filter (where query = '<insufficient privilege>') = 0 then
            count(*) filter (where query ilike 'listen %' or query like '%pg_listening_channels%') end::int
        from pg_stat_activity
        where datname = current_database() and application_name = $1::text and pid <> pg_backend_pid()
    ) as listening,
    (
        select format('process %s (%s, user %s, %s for %s s)', pid, coalesce(nullif(application_name, ''), 'no name'),
            usename, case when wait_event = 'ClientWrite' then 'not reading' else state end,
            round(extract(epoch from clock_timestamp() - least(xact_start, state_change))))
        from pg_stat_activity
        where backend_type = 'client backend' and pid <> pg_backend_pid()
            and (wait_event = 'ClientWrite' or xact_start is not null)
        order by (wait_event = 'ClientWrite') desc nulls last, xact_start
        limit 1
    ) as oldest,
    (
        select pid
        from pg_stat_activity
        where backend_type = 'client backend' and pid <> pg_backend_pid()
            and (wait_event = 'ClientWrite' or xact_start is not null)
        order by (wait_event = 'ClientWrite') desc nulls last, xact_start
        limit 1
    ) as oldest_pid
