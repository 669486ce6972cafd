-- The indexes of the tables that Duly writes all the time, without reading them: their size, and the size that their
-- entries need by the planner's statistics.
--   $1 schema  $2 names of tables
-- An entry is its key and 20 bytes; pages that grew by insertion in random order are two thirds full.
select c.relname::text as name, pg_relation_size(c.oid) as bytes,
    16384::float8 + 1.5::float8 * (20::float8 + key.width) * case
        -- A part of the rows: their number as of the last vacuum, if there was one.
        when i.indpred is not null and c.reltuples > 0::float4
            then c.reltuples::float8
        else greatest(pg_stat_get_live_tuples(i.indrelid)::float8, t.reltuples::float8, 0)
    end as needed
from pg_index i
join pg_class c on c.oid = i.indexrelid
join pg_class t on t.oid = i.indrelid
join pg_namespace n on n.oid = t.relnamespace
cross join lateral (
    select coalesce(sum(coalesce(s.avg_width, 16)), 16)::float8 as width
    from pg_attribute a
    left join pg_attribute of_table
        on of_table.attrelid = t.oid and of_table.attnum = i.indkey[a.attnum - 1::int2]
    left join pg_stats s
        on s.schemaname = n.nspname and s.tablename = case when of_table.attnum > 0::int2 then t.relname else c.relname end
            and s.attname = coalesce(of_table.attname, a.attname)
    where a.attrelid = c.oid
) key
where n.nspname = $1::name and t.relname = any ($2::name[])
