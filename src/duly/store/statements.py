"""The SQL statements, one file each: `sql/<module>/<function>.sql`, and further steps by names of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any

from duly.schema_name import DEFAULT_SCHEMA
from duly.store.translation import in_schema

#: The step of the migrations that brought duly.audit.
AUDIT_STEP = 8

# A call has no space before its parenthesis, a list of names has one. These look like calls and are keywords.
_LANGUAGE = "array|coalesce|extract|greatest|least|nullif|operator|position|substring|trim"
_CALL = re.compile(rf"(?<![\w.])(?!(?:{_LANGUAGE})\()([a-z_]\w*)\(")
# Types whose names are not keywords, where a value is cast to them or a literal begins with them.
_TYPES = "bool|bytea|date|float8|int[248]|jsonb|name|oid|reg[a-z]+|text|tid|timestamptz|uuid|xid"
_CAST = re.compile(rf"(::|(?<![\w.:])(?=\w+ '))({_TYPES})\b")
# PostgreSQL gives a literal the type of the other operand before it takes it for text.
_MEMBER = re.compile(r"(->>?|\?) ('[^']*')(?!::)")


# A statement that writes to duly.audit has its part for that between two comments.
_AUDITED = re.compile(r"^-- audited:\n(.*?)^-- end audited\n", re.MULTILINE | re.DOTALL)
_PARAMETER = re.compile(r"\$(\d+)")


@cache
def statement(name: str, schema: str = DEFAULT_SCHEMA, *, audited: bool = False) -> str:
    """The text of `sql/<name>.sql` for a schema, with `pg_catalog.` before every function and type of PostgreSQL.

    `audited`: with its part that writes to duly.audit, if it has one.

    Behind a pooler, and on callers' connections, Duly cannot set the search_path. A function there that fits the
    arguments better than PostgreSQL's own (`unnest(anyarray)` fits nothing exactly) would be called instead, with the
    rights of the session. So would an operator: the statements give each operator exactly the types that PostgreSQL's
    own takes (a smallint is cast before it meets an integer). Statements sent over a caller's connection also qualify
    operators, because there another schema may come before pg_catalog.
    `tests/store/test_hijacking.py` checks every statement.
    """
    text = _AUDITED.sub(r"\1" if audited else "", read_statement("duly.store", name))
    return in_schema(_CALL.sub(_named, _CAST.sub(r"\1pg_catalog.\2", _MEMBER.sub(r"\1 \2::text", text))), schema)


@cache
def audit_parameter(name: str) -> int | None:
    """The number of the parameter of a statement that says who acts (`Actor.note`), its last one. 0: another parameter
    has it. None: the statement writes nothing to duly.audit."""
    text = read_statement("duly.store", name)
    if _AUDITED.search(text) is None:
        return None
    whole, bare = (_parameters(one) for one in (text, _AUDITED.sub("", text)))
    return whole if whole > bare else 0


def composed(
    name: str, schema: str, args: Sequence[Any], *, has_audit: Callable[[int], bool]
) -> tuple[str, Sequence[Any]]:
    """The text of a statement and its arguments, as the store takes them: without what writes to duly.audit if the
    store lacks that table (`has_audit`), or the caller gives no note."""
    number = audit_parameter(name)
    if number is None:
        return statement(name, schema), args
    if number == 0:
        return statement(name, schema, audited=has_audit(AUDIT_STEP)), args
    if len(args) < number or args[-1] is None or not has_audit(AUDIT_STEP):
        return statement(name, schema), args[: number - 1]
    return statement(name, schema, audited=True), args


def _parameters(text: str) -> int:
    bare = re.sub(r"--[^\n]*", "", text)
    return max((int(number) for number in _PARAMETER.findall(bare)), default=0)


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
