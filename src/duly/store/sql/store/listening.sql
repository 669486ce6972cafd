-- What this session listens to. The answer also says that its connection still carries something both ways.
select array(select pg_listening_channels()) as channels
