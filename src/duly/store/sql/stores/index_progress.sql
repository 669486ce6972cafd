-- How far the session $1 has come with building an index.
select coalesce(p.index_relid::regclass::text, p.relid::regclass::text) as name, p.phase,
    coalesce(100 * coalesce(nullif(p.blocks_done, 0), p.tuples_done) / nullif(coalesce(nullif(p.blocks_total, 0), p.tuples_total), 0), 0)::integer
        as percent
from pg_stat_progress_create_index p
where p.pid = $1
