-- Registers a node, or its return.
--   $1 node_id  $2 kind  $3 name  $4 version  $5 lease in seconds  $6 info as JSON
insert into duly.nodes (node_id, kind, name, version, started_at, lease_until, info)
values ($1, $2, $3, $4, duly.now(), duly.now() + make_interval(secs => $5), $6::jsonb)
on conflict (node_id) do update set lease_until = excluded.lease_until, info = excluded.info, stopped_at = null
