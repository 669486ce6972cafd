-- The tables that Duly writes all the time, without reading them: their size, the size that their live rows need by the
-- planner's statistics (null: it has none), their dead rows, and what autovacuum does about those.
--   $1 schema  $2 names of tables
select c.relname::text as name, pg_relation_size(c.oid) as bytes,
    (
        -- The greater of two counts: a crash of the server resets the first, the second is as old as the last vacuum.
        -- A row's header and line pointer are 28 bytes; alignment and the row's length itself are about 4 more.
        select greatest(pg_stat_get_live_tuples(c.oid)::float8, c.reltuples::float8, 0) * (32::float8 + sum(s.avg_width::float8 * (1::float8 - s.null_frac::float8)))
            * 100::float8 / coalesce(o.fillfactor, 100)::float8
        from pg_stats s
        where s.schemaname = $1::name and s.tablename = c.relname
    ) as needed,
    pg_stat_get_live_tuples(c.oid) as live, pg_stat_get_dead_tuples(c.oid) as dead,
    coalesce(o.enabled, true) as autovacuum,
    -- The number of dead rows at which autovacuum begins.
    coalesce(o.threshold, current_setting('autovacuum_vacuum_threshold')::float8)
        + coalesce(o.scale, current_setting('autovacuum_vacuum_scale_factor')::float8) * greatest(c.reltuples, 0)::float8
        as dead_allowed,
    extract(epoch from clock_timestamp() - greatest(
        pg_stat_get_last_autovacuum_time(c.oid), pg_stat_get_last_vacuum_time(c.oid)
    ))::float8 as vacuumed_seconds_ago
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
cross join lateral (
    select max(option_value) filter (where option_name = 'autovacuum_enabled')::bool as enabled,
        max(option_value) filter (where option_name = 'autovacuum_vacuum_threshold')::float8 as threshold,
        max(option_value) filter (where option_name = 'autovacuum_vacuum_scale_factor')::float8 as scale,
        max(option_value) filter (where option_name = 'fillfactor')::float8 as fillfactor
    from pg_options_to_table(c.reloptions)
) o
where n.nspname = $1::name and c.relname = any ($2::name[]) and c.relkind = 'r'
