-- The other schemas of this database that hold a Duly, told by names of its tables.   $1 this store's schema
select n.nspname::text as name
from pg_catalog.pg_namespace n
where n.nspname <> $1::name and (
    select count(*) from pg_catalog.pg_class c
    where c.relnamespace = n.oid and c.relname in ('migrations'::name, 'job_changes'::name, 'claims'::name, 'shards'::name)
) = 4
order by n.nspname
limit 5
