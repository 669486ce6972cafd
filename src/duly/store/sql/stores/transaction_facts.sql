-- The facts about the store that a submit in the caller's transaction needs. Numbers and strings only: drivers differ
-- in what they make of other types.   $1 tenants of the jobs  $2 tasks whose defaults are wanted
select s.store_id::text as store_id, s.shard_count::int as shard_count,
    (extract(epoch from duly.now()) operator(pg_catalog.*) 1000000.0)::bigint as now_us,
    (select string_agg(version::text, ',') from duly.migrations) as applied,
    (select name from duly.migrations where version operator(pg_catalog.=) 0) as min_version,
    -- A role that was granted what docs/sql.md asked for before there was an audit trail goes on without it.
    coalesce(has_table_privilege(to_regclass('duly.audit')::oid, 'insert'), false) as may_note,
    (
        select coalesce(json_agg(json_build_object('tenant', t.tenant, 'counted', t.max_jobs is not null, 'tasks', t.tasks,
            'queues', t.queues, 'commands', t.commands)), '[]')::text
        from duly.tenants t
        where t.tenant operator(pg_catalog.=) any ($1::text[])
    ) as tenants,
    (
        -- A store without migration 0004 has no such column.
        select json_object_agg(h.name, pg_catalog.to_jsonb(h) operator(pg_catalog.->) 'defaults')::text
        from duly.handlers h
        where h.name operator(pg_catalog.=) any ($2::text[])
    ) as offered
from duly.store s
