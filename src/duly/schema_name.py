"""The name of the schema that holds the store's tables and functions."""

from __future__ import annotations

import re

DEFAULT_SCHEMA = "duly"
#: The longest name. The names of channels are a little longer, and PostgreSQL cuts names after 63 bytes.
MAX_SCHEMA = 40
# Words that PostgreSQL (up to version 18) or PL/pgSQL reads as something else than a name somewhere. A name that needs
# no quotes is the same text in every statement, message and command.
_WORDS = frozenset((
    "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric", "authorization", "begin",
    "between", "bigint", "binary", "bit", "boolean", "both", "by", "case", "cast", "char", "character", "check",
    "coalesce", "collate", "collation", "column", "concurrently", "constraint", "create", "cross",
    "current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp",
    "current_user", "dec", "decimal", "declare", "default", "deferrable", "desc", "distinct", "do", "else", "end",
    "except", "execute", "exists", "extract", "false", "fetch", "float", "for", "foreach", "foreign", "freeze",
    "from", "full", "grant", "greatest", "group", "grouping", "having", "if", "ilike", "in", "initially", "inner",
    "inout", "int", "integer", "intersect", "interval", "into", "is", "isnull", "join", "json", "json_array",
    "json_arrayagg", "json_exists", "json_object", "json_objectagg", "json_query", "json_scalar",
    "json_serialize", "json_table", "json_value", "lateral", "leading", "least", "left", "like", "limit",
    "localtime", "localtimestamp", "loop", "merge_action", "national", "natural", "nchar", "none", "normalize",
    "not", "notnull", "null", "nullif", "numeric", "offset", "on", "only", "or", "order", "out", "outer",
    "overlaps", "overlay", "placing", "position", "precision", "primary", "real", "references", "returning",
    "right", "row", "select", "session_user", "setof", "similar", "smallint", "some", "strict", "substring",
    "symmetric", "system_user", "table", "tablesample", "then", "time", "timestamp", "to", "trailing", "treat",
    "trim", "true", "union", "unique", "user", "using", "values", "varchar", "variadic", "verbose", "when",
    "where", "while", "window", "with", "xmlattributes", "xmlconcat", "xmlelement", "xmlexists", "xmlforest",
    "xmlnamespaces", "xmlparse", "xmlpi", "xmlroot", "xmlserialize", "xmltable",
))  # fmt: skip
_NAME = re.compile(rf"[a-z_][a-z0-9_]{{0,{MAX_SCHEMA - 1}}}")


def check_schema(name: str) -> str:
    """The name, if a store may lie in that schema; else raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a name that a store's schema may have: 1 to {MAX_SCHEMA} lower-case letters, digits "
            "and _, and no digit first"
        )
    if name in ("public", "information_schema") or name.startswith("pg_"):
        raise ValueError(
            f"{name} belongs to others: Duly's tables and functions have a schema of their own; choose another name, "
            "such as duly_app"
        )
    if name in _WORDS:
        raise ValueError(f"{name} is a word of SQL: choose another name, such as {name}_jobs")
    return name


def in_what_schema(name: str) -> str:
    """The end of a sentence about a store: ` (schema x)`, and nothing for the default one."""
    return "" if name == DEFAULT_SCHEMA else f" (schema {name})"
