"""Statements for a schema of another name. All SQL texts of Duly say `duly.`, so that they can be pasted into psql.

| in a text | in the schema `jobs` |
| --- | --- |
| `duly.runs`, `'duly.runs'::regclass`, `format('duly.%I', …)` | `jobs.runs`, `'jobs.runs'::regclass`, `format('jobs.%I', …)` |
| `schema duly`, `'duly'::regnamespace`, `nspname = 'duly'` | `schema jobs`, `'jobs'::regnamespace`, `nspname = 'jobs'` |
| `duly_work`, a channel of NOTIFY | `jobs_work` |
| 1685417081, the key of advisory locks | a key of that schema's own |

So two Duly in one database do not see, wake or wait for each other. A text for the schema `duly` is used as it is, and
for any other it is translated once. Values never stand in a text, so they are not translated.
`tests/store/test_translation.py` finds texts that say `duly` in yet another way.
"""  # noqa: E501

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from duly.schema_name import DEFAULT_SCHEMA

#: What follows the schema's name in the names of channels. No underscore: two schemas never share a channel.
CHANNELS = ("work", "due", "cancel", "submitted", "zones", "shards", "monitors")
# "duly" in ASCII. It stands in the baseline and must never change.
_DEFAULT_KEY = 0x64756C79
_NAME = re.compile(
    r"(?<![\w./$-])duly(?=\.)"
    r"|(?<=\bschema )duly\b(?!\.)"
    r"|(?<=')duly(?='::(?:pg_catalog\.)?regnamespace\b)"
    r"|(?<=\bnspname = ')duly(?=')"
    rf"|(?<![\w./$-])duly(?=_(?:{'|'.join(CHANNELS)})\b)"
)
_KEY = re.compile(rf"\b{_DEFAULT_KEY}\b")


def in_schema(sql: str, schema: str) -> str:
    """The text for a store in this schema."""
    return sql if schema == DEFAULT_SCHEMA else _translated(sql, schema)


def from_schema(sql: str, schema: str) -> str:
    """A text that was translated, as it was, but for names before a dot: `jobs.x` may be a column of the table jobs."""
    if schema == DEFAULT_SCHEMA:
        return sql
    back = re.compile(_NAME.pattern.replace(DEFAULT_SCHEMA, schema))
    return re.sub(rf"\b{lock_key(schema)}\b", str(_DEFAULT_KEY), back.sub(DEFAULT_SCHEMA, sql))


@lru_cache(maxsize=4096)
def _translated(sql: str, schema: str) -> str:
    return _KEY.sub(str(lock_key(schema)), _NAME.sub(schema, sql))


def lock_key(schema: str) -> int:
    """The key of the schema's advisory locks: a positive integer of four bytes."""
    if schema == DEFAULT_SCHEMA:
        return _DEFAULT_KEY
    return int.from_bytes(hashlib.sha256(schema.encode()).digest()[:4]) >> 1
