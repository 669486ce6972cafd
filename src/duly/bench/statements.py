"""The few statements that only the bench sends, in `sql/`; the measured ones are the store's own."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def bench_statement(name: str) -> str:
    """The text of `sql/<name>.sql`."""
    return resources.files("duly.bench").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
