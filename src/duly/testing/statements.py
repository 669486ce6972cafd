"""The few statements that only tests need, in `sql/`: they move the clock, and create and drop databases."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def testing_statement(name: str) -> str:
    """The text of `sql/<name>.sql`."""
    return resources.files("duly.testing").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
