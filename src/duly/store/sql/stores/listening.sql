-- The channels this session listens to. The answer also proves that its connection still works in both directions. A
-- server that has become read-only announces nothing: its answer counts as silence.
select array(select pg_listening_channels() where current_setting('transaction_read_only') = 'off') as channels
