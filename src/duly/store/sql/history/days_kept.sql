-- The days whose history is kept: one partition each.
select to_date(substr(c.relname, 9), 'YYYYMMDD') as day
from pg_inherits i
join pg_class c on c.oid = i.inhrelid
where i.inhparent = 'duly.history'::regclass::oid and c.relname::text ~ '^history_\d{8}$'
