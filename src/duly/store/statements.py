"""The SQL statements, one file each: `sql/<module>/<function>.sql`, and further steps by names of their own."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from duly.schema_name import DEFAULT_SCHEMA
from duly.store.translation import in_schema

# A call has no space before its parenthesis, a list of names has one. These look like calls and are keywords.
_LANGUAGE = "array|coalesce|extract|greatest|least|nullif|operator|position|substring|trim"
_CALL = re.compile(rf"(?<![\w.])(?!(?:{_LANGUAGE})\()([a-z_]\w*)\(")
# Types whose names are not keywords, where a value is cast to them or a literal begins with them.
_TYPES = "bool|bytea|date|float8|int[248]|jsonb|name|oid|reg[a-z]+|text|tid|timestamptz|uuid|xid"
_CAST = re.compile(rf"(::|(?<![\w.:])(?=\w+ '))({_TYPES})\b")
# PostgreSQL gives a literal the type of the other operand before it takes it for text.
_MEMBER = re.compile(r"(->>?|\?) ('[^']*')(?!::)")


@cache
def statement(name: str, schema: str = DEFAULT_SCHEMA) -> str:
    """The text of `sql/<name>.sql` for a schema, with `pg_catalog.` before every function and type of PostgreSQL.

    Behind a pooler, and on callers' connections, Duly cannot set the search_path. A function there that fits the
    arguments better than PostgreSQL's own (`unnest(anyarray)` fits nothing exactly) would be called instead, with the
    rights of the session. So would an operator: the statements give each operator exactly the types that PostgreSQL's
    own takes (a smallint is cast before it meets an integer). Statements sent over a caller's connection also qualify
    operators, because there another schema may come before pg_catalog.
    `tests/store/test_hijacking.py` checks every statement.
    """
    text = read_statement("duly.store", name)
    return in_schema(_CALL.sub(_named, _CAST.sub(r"\1pg_catalog.\2", _MEMBER.sub(r"\1 \2::text", text))), schema)


def read_statement(package: str, name: str) -> str:
    """The text of `sql/<name>.sql` in a package."""
    return resources.files(package).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


def with_own_functions(text: str) -> str:
    """A driver's statement, with `pg_catalog.` before PostgreSQL's functions."""
    return re.sub(r"(?<![\w.])(?<!RECURSIVE )(?!(?:any|all|in|exists|values)\()([a-z_]\w*)\(", r"pg_catalog.\1(", text)


def _named(call: re.Match[str]) -> str:
    # With several arrays `unnest` is a keyword, and means PostgreSQL's own.
    if call[1] == "unnest" and _has_several(call.string, call.end()):
        return call[0]
    return f"pg_catalog.{call[0]}"


def _has_several(text: str, start: int) -> bool:
    """Whether the argument list that begins here has a comma."""
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
