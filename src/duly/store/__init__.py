"""The store in PostgreSQL, the only package that speaks SQL. Read in this order:

1. `schema/01_store.sql` and the files after it: the tables, in the order of a job's life.
2. `statements.py` and `sql/<module>/*.sql`: one statement per file. A function's statement has the function's name;
   further steps have names of their own.
3. `pool.py`: connections, `Querier`, transactions, and the translation of database errors. `sifting.py` keeps one bad
   row from failing a batch; `reading.py` reads rows that other programs may have written.
4. Per module the functions over its statements: `jobs`, `copying` (bulk submits), `fires`, `runs`, `history`,
   `dead_letters`, `ledger`, `progress`, `maintenance`, `cluster`, `zones`, `forecasts`, `changes`, `sql_submits`,
   `tenants`, `keys`, `submitters`, `stores`.
5. `foreign.py`: the same statements on a caller's own connection.
6. `opening.py`, `migrate.py`, `embedded.py`, `notifier.py`, `session.py`: from settings to a store that answers.
7. `steps.py`, `script.py`, `catalogue.py`: the store's versions, the same as SQL text, and how a store differs from
   what they have made.
"""
