-- Sessions that have locked Duly's tables in an open transaction, the longest first. Duly's own short statements are
-- left out.
select a.pid, coalesce(nullif(a.application_name, ''), a.usename, a.backend_type) as who,
    string_agg(distinct l.relation::regclass::text, ', ') as tables,
    extract(epoch from clock_timestamp() - min(a.xact_start))::float8 as seconds,
    a.state || ', ' || regexp_replace(left(a.query, 80), '\s+', ' ', 'g') as doing
from pg_locks l
join pg_class c on c.oid = l.relation and c.relnamespace = 'duly'::regnamespace and c.relkind in ('r', 'p', 'v')
join pg_stat_activity a on a.pid = l.pid
where l.granted and l.database = (select oid from pg_database where datname = current_database())
    and a.pid <> pg_backend_pid() and a.xact_start < clock_timestamp() - interval '1 second'
group by a.pid, a.application_name, a.usename, a.backend_type, a.state, a.query
order by seconds desc
limit 3
