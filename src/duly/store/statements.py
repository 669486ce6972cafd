"""The SQL, one file per operation under `sql/`, named as the method that runs it."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def statement(name: str) -> str:
    """The text of `sql/<name>.sql`."""
    return resources.files("duly.store").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
