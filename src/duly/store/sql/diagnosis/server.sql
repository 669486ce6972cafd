-- The server's settings that decide about durability and upkeep, the ages of this database's oldest transaction ids, and
-- the number of its connections. `sees_all`: this user sees what other users' sessions do.
--   $1 names of Duly's sessions
select current_setting('server_version_num')::int as version,
    current_setting('fsync') = 'on' as fsync,
    current_setting('full_page_writes') = 'on' as full_page_writes,
    current_setting('synchronous_commit') as synchronous_commit,
    current_setting('autovacuum') = 'on' and current_setting('track_counts') = 'on' as autovacuum,
    current_setting('autovacuum_freeze_max_age')::int8 as freeze_max_age,
    (select age(datfrozenxid)::int8 from pg_database where datname = current_database()) as xid_age,
    (select mxid_age(datminmxid)::int8 from pg_database where datname = current_database()) as multixact_age,
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true), '0')::int as connections_allowed,
    (select coalesce(sum(numbackends), 0)::int from pg_stat_database) as connections,
    (
        select count(*)::int
        from pg_stat_activity
        where datname = current_database() and application_name = any ($1::text[])
    ) as own_connections,
    pg_has_role(current_user, 'pg_read_all_stats', 'usage') as sees_all
