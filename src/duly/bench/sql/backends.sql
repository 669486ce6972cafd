-- The server's processes that work for this database's Duly nodes.
select pid from pg_stat_activity where datname = current_database() and application_name = 'duly' and pid <> pg_backend_pid()
