"""The store in PostgreSQL, the only room that speaks SQL. Read in this order:

1. `schema/01_store.sql` and the files after it: the tables, in the order of a job's life. 2. `statements.py` and
`sql/<group>/<function>.sql`: one statement per file, named as the function that runs it. 3. `pool.py`: connections,
`Querier`, transactions, and the translation of database errors. `sifting.py` keeps one bad row from failing a batch;
`reading.py` reads rows that other programs may have written. 4. Per group the functions over its statements: `jobs`,
`copying` (bulk submits), `fires`, `runs`, `history`, `dead_letters`, `ledger`, `progress`, `maintenance`, `cluster`,
`zones`, `forecasts`, `changes`, `sql_submits`, `tenants`, `keys`, `submitters`, `stores`. 5. `foreign.py`: the same
statements on a caller's own connection. 6. `opening.py`, `migrate.py`, `embedded.py`, `notifier.py`, `session.py`: from
settings to a store that answers.
"""
