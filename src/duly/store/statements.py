"""The SQL, one file per operation under `sql/`, named as the method that runs it."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

# A call has no space before its bracket, a list of names has one. These look like calls and are part of the language.
_LANGUAGE = "array|coalesce|extract|greatest|least|nullif|position|substring|trim"
_CALL = re.compile(rf"(?<![\w.])(?!(?:{_LANGUAGE})\()([a-z_]\w*)\(")


@cache
def statement(name: str) -> str:
    """The text of `sql/<name>.sql`, with every function of PostgreSQL's named as such.

    Behind a pooler, and on connections of others, the session's search_path is not ours to set. A function there that
    fits the arguments better than PostgreSQL's own (`unnest(anyarray)` fits nothing exactly) would be called instead,
    with the rights of whoever asks.
    """
    text = resources.files("duly.store").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    return _CALL.sub(_named, text)


def _named(call: re.Match[str]) -> str:
    # Of several arrays `unnest` is part of the language as well, and means PostgreSQL's own.
    if call[1] == "unnest" and _has_several(call.string, call.end()):
        return call[0]
    return f"pg_catalog.{call[0]}"


def _has_several(text: str, start: int) -> bool:
    """Whether there is a comma between the arguments that begin here."""
    depth = 0
    for character in text[start:]:
        if character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        if depth < 0:
            return False
        if character == "," and depth == 0:
            return True
    return False
