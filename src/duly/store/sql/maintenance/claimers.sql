-- The transactions that may have written a claim which is not visible yet: such a transaction has had the table locked
-- since before it took an id.
select virtualtransaction as holder
from pg_locks
where locktype = 'relation' and relation = 'duly.claims'::regclass::oid and mode = 'RowExclusiveLock' and granted
    and database = (select oid from pg_database where datname = current_database()) and pid <> pg_backend_pid()
