-- The session that has kept vacuum from removing dead rows for longest: one with an old transaction or snapshot, a
-- prepared transaction, or a replication slot without a reader. `seconds`: for how long, where that is known.
select what, seconds, ending
from (
    select format('process %s (%s, %s)', pid, coalesce(nullif(application_name, ''), usename, backend_type), state) as what,
        extract(epoch from clock_timestamp() - xact_start)::float8 as seconds,
        format('select pg_terminate_backend(%s)', pid) as ending
    from pg_stat_activity
    where (backend_xmin is not null or backend_xid is not null) and pid <> pg_backend_pid()
        and backend_type in ('client backend', 'walsender') and (datname is null or datname = current_database())
    union all
    select format('the prepared transaction %s', gid), extract(epoch from clock_timestamp() - prepared)::float8,
        format('rollback prepared %L', gid)
    from pg_prepared_xacts
    where database = current_database()
    union all
    select format('the replication slot %s', slot_name), null, format('select pg_drop_replication_slot(%L)', slot_name)
    from pg_replication_slots
    where not active and (xmin is not null or catalog_xmin is not null)
) old
order by seconds desc nulls last
limit 1
