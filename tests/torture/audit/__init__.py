"""The audit: triggers that write every row change into `torture.audit`, in the transaction that made it.

So the audit has exactly the committed changes, survives crashes as the store does, and is promoted with it. The tables
of the harness are in a schema of their own, which the product does not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import asyncpg

RECORD = "audit.jsonl"
# Changes that an old primary had committed and the promoted standby never received.
FORGOTTEN = "forgotten.jsonl"

# The product's tables, and their names in the records.
TABLES: Mapping[str, str] = {
    "jobs": "jobs",
    "runs": "runs",
    "claims": "claims",
    "history": "history",
    "attempts": "attempts",
    "dead_letters": "dead_letters",
    "shards": "shards",
    "catch_ups": "catch_ups",
    "job_changes": "changes",
}


def _sql(name: str) -> str:
    return resources.files("torture.audit").joinpath(f"{name}.sql").read_text(encoding="utf-8")


async def install(admin_url: str) -> None:
    """Installs the triggers in a migrated store, before the first node starts."""
    connection = await asyncpg.connect(admin_url)
    try:
        await connection.execute(_sql("install"))
        for table, called in TABLES.items():
            # A row trigger on a partitioned table also applies to all of its partitions, including later ones.
            await connection.execute(
                f"create trigger torture_audit after insert or update or delete on duly.{table} "
                f"for each row execute function torture.note('{called}')"
            )
    finally:
        await connection.close()


async def export(admin_url: str, folder: Path) -> int:
    """Writes `audit.jsonl` and returns the number of changes. Reads with a cursor: a long run has millions."""
    connection = await asyncpg.connect(admin_url)
    written = 0
    try:
        with (folder / RECORD).open("w", encoding="utf-8") as file:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                async for row in connection.cursor(_sql("export"), prefetch=2000):
                    file.write(row["line"])
                    file.write("\n")
                    written += 1
    finally:
        await connection.close()
    return written


async def forgotten(old_url: str, new_url: str, folder: Path) -> int:
    """Adds to `forgotten.jsonl` the changes that only the old primary's audit has, and returns their number."""
    new, old = await asyncpg.connect(new_url), await asyncpg.connect(old_url)
    written = 0
    try:
        kept = {tuple(row) for row in await new.fetch(_sql("keys"))}
        gone = {row["n"] for row in await old.fetch(_sql("keys")) if tuple(row) not in kept}
        with (folder / FORGOTTEN).open("a", encoding="utf-8") as file:
            for row in await old.fetch(_sql("export")) if gone else ():
                if json.loads(row["line"])["n"] in gone:
                    file.write(row["line"] + "\n")
                    written += 1
    finally:
        await new.close()
        await old.close()
    return written


async def tables(admin_url: str) -> dict[str, list[Any]]:
    """All rows of the product's tables, by their names in the records, and of the handlers' own table `effects`."""
    connection = await asyncpg.connect(admin_url)
    try:
        found = {}
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            for table, called in {**{f"duly.{table}": called for table, called in TABLES.items()},
                                  "duly.nodes": "nodes", "duly.terms": "terms",
                                  "torture.effects": "effects"}.items():  # fmt: skip
                rows = await connection.fetch(f"select to_jsonb(t)::text as row from {table} t")
                found[called] = [json.loads(row["row"]) for row in rows]
        return found
    finally:
        await connection.close()


async def activity(admin_url: str) -> list[dict[str, Any]]:
    """The rows of `pg_stat_activity` for all client connections except this one."""
    connection = await asyncpg.connect(admin_url)
    try:
        rows = await connection.fetch(_sql("activity"))
        return [json.loads(row["row"]) for row in rows]
    finally:
        await connection.close()


async def under_way(admin_url: str) -> dict[str, int]:
    """Counts of everything that is not finished yet: runs, claims, catch-ups, planned jobs."""
    connection = await asyncpg.connect(admin_url)
    try:
        row = await connection.fetchrow(_sql("under_way"))
        assert row is not None
        return dict(row)
    finally:
        await connection.close()
