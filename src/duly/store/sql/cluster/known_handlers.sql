-- The Python tasks that workers have offered, and the defaults that they set. A store without migration 0004 has no such
-- column, and a task that sets none has a null: both are no defaults.
select h.name, (pg_catalog.to_jsonb(h) operator(pg_catalog.->) 'defaults')::text as defaults
from duly.handlers h
order by h.name
