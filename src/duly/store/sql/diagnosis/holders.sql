-- Who keeps vacuum from removing dead rows, the oldest first: sessions with an open transaction or snapshot, prepared
-- transactions, replication slots, and standbys that report the snapshots of their own queries.
--   $1 maximum number of rows
-- `seconds`: since when, where that is known. `transactions`: how many have begun since. Of other users' sessions only
-- a member of pg_read_all_stats sees the state and the time.
select kind, what, handle, seconds, transactions, in_use
from (
    select case when backend_type = 'walsender' then 'standby' else 'session' end as kind,
        case when backend_type = 'walsender'
            then format('the standby %s (process %s), whose queries hot_standby_feedback reports',
                coalesce(nullif(application_name, ''), usename::text), pid)
            else format('process %s (%s, user %s, %s)', pid, coalesce(nullif(application_name, ''), 'no name'), usename,
                coalesce(state, 'of another user'))
        end as what,
        pid::text as handle,
        extract(epoch from clock_timestamp() - xact_start)::float8 as seconds,
        greatest(age(backend_xmin), age(backend_xid))::int8 as transactions,
        true as in_use
    from pg_stat_activity
    where (backend_xmin is not null or backend_xid is not null) and pid <> pg_backend_pid()
        and (datname is null or datname = current_database())
        and (backend_type is null or backend_type in ('client backend', 'walsender'))
    union all
    select 'prepared', format('the prepared transaction %s of user %s', gid, owner), gid,
        extract(epoch from clock_timestamp() - prepared)::float8, age(transaction)::int8, true
    from pg_prepared_xacts
    where database = current_database()
    union all
    select 'slot', format('the replication slot %s (%s)', slot_name, case when active then 'in use' else 'nobody reads it' end),
        slot_name::text,
        extract(epoch from clock_timestamp() - (to_jsonb(s) ->> 'inactive_since')::timestamptz)::float8,
        greatest(age(xmin), age(catalog_xmin))::int8, active
    from pg_replication_slots s
    where xmin is not null or (catalog_xmin is not null and database = current_database())
) holding
order by transactions desc nulls last, seconds desc nulls last
limit $1
