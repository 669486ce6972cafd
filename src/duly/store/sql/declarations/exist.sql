-- Whether the store has the table of declarations (migration 0003).
select pg_catalog.to_regclass('duly.declarations') is not null as exist
