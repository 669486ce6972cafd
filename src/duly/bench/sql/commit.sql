-- The smallest transaction that must reach the disk.
select pg_logical_emit_message(true, 'duly bench', '')
