-- The store's identity, whether its clock is the real one, the server's version, and the last day that has a partition.
select s.store_id, s.shard_count, c.frozen_at is null and c.shift = interval '0' as clock_is_real,
    current_setting('server_version') as server_version,
    (
        select max(to_date(right(p.relname, 8), 'YYYYMMDD'))::timestamp at time zone 'UTC'
        from pg_inherits i
        join pg_class p on p.oid = i.inhrelid
        where i.inhparent = 'duly.history'::regclass::oid and p.relname::text ~ '_\d{8}$'
    ) as partitions_until
from duly.store s cross join duly.clock c
