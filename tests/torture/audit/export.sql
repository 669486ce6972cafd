-- The lines of audit.jsonl, in the order of writes.
select jsonb_build_object('n', n, 'txid', txid, 'at', extract(epoch from at)::float8, 'table', tbl, 'op', op,
    'old', old, 'new', new)::text as line
from torture.audit
order by n
