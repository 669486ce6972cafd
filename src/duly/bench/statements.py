"""The few statements that only the bench sends, in `sql/`; the measured ones are the store's own."""

from functools import cache, partial

from duly.store.statements import read_statement

bench_statement = cache(partial(read_statement, "duly.bench"))
