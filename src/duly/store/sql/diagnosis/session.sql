-- The server's session that answers; behind a pooler it is not the one that the client was told of.
select pg_backend_pid() as pid
