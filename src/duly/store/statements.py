"""The SQL, one file per operation under `sql/`, named as the method that runs it."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

# A call has no space before its bracket, a list of names has one. These look like calls and are part of the language.
_LANGUAGE = "array|coalesce|extract|greatest|least|nullif|operator|position|substring|trim"
_CALL = re.compile(rf"(?<![\w.])(?!(?:{_LANGUAGE})\()([a-z_]\w*)\(")
# Types whose names are no words of the language, where something is cast to them or a literal begins with them.
_TYPES = "bool|bytea|date|float8|int[248]|jsonb|name|oid|reg[a-z]+|text|tid|timestamptz|uuid|xid"
_CAST = re.compile(rf"(::|(?<![\w.:])(?=\w+ '))({_TYPES})\b")
# A literal counts as whatever type the other side has, before it counts as the text that it is.
_MEMBER = re.compile(r"(->>?|\?) ('[^']*')(?!::)")


@cache
def statement(name: str) -> str:
    """The text of `sql/<name>.sql`, with every function and type of PostgreSQL's named as such.

    Behind a pooler, and on connections of others, the session's search_path is not ours to set. A function there that
    fits the arguments better than PostgreSQL's own (`unnest(anyarray)` fits nothing exactly) would be called instead,
    with the rights of whoever asks. So would an operator: the statements hand to each what PostgreSQL's own takes, to
    the letter (`flags::int & 8`, because there is no operator for a smallint and an integer). What is sent over a
    caller's connection names operators too, because there somebody's schema may come before PostgreSQL's.
    `tests/store/test_hijacking.py` holds every statement to that.
    """
    text = resources.files("duly.store").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    return _CALL.sub(_named, _CAST.sub(r"\1pg_catalog.\2", _MEMBER.sub(r"\1 \2::text", text)))


def with_own_functions(text: str) -> str:
    """A statement of somebody else's, with PostgreSQL's functions named as such."""
    return re.sub(r"(?<![\w.])(?<!RECURSIVE )(?!(?:any|all|in|exists|values)\()([a-z_]\w*)\(", r"pg_catalog.\1(", text)


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
