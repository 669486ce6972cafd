"""The few statements that only tests need, in `sql/`: they move the clock, and create and drop databases."""

from functools import cache, partial

from duly.store.statements import read_statement

testing_statement = cache(partial(read_statement, "duly.testing"))
