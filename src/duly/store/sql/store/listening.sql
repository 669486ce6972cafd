-- What this session listens to. The answer also says that its connection still carries something both ways. A server
-- that is read-only by now announces nothing: whatever is said there counts as silence.
select array(select pg_listening_channels() where current_setting('transaction_read_only') = 'off') as channels
