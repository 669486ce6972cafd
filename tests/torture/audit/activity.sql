-- The client connections of the database, without the one that runs this statement.
select jsonb_build_object('pid', pid, 'application_name', application_name, 'state', state, 'backend_type', backend_type,
    'xact_start', extract(epoch from xact_start)::float8, 'state_change', extract(epoch from state_change)::float8,
    'query', left(query, 200), 'wait_event_type', wait_event_type, 'wait_event', wait_event,
    'now', extract(epoch from clock_timestamp())::float8)::text as row
from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
