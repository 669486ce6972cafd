"""Makes the text of src/duly/store/catalogue.json: what each step and the routines make, in an empty database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

import duly.store
from duly.store.catalogue import FIRST_VERSION, Facts, facts_of
from duly.store.statements import statement
from duly.store.steps import Release
from harness.old_store import make_first_store

if TYPE_CHECKING:
    from conftest import Server

MANIFEST = Path(duly.store.__file__).parent / "catalogue.json"


async def _facts(connection: asyncpg.Connection[asyncpg.Record]) -> dict[str, str]:
    return facts_of(await connection.fetch(statement("stores/catalogue")))


def _made(before: Facts, after: Facts) -> dict[str, str | None]:
    """What has come, changed and gone."""
    made: dict[str, str | None] = {key: about for key, about in after.items() if before.get(key) != about}
    return made | dict.fromkeys(before.keys() - after.keys())


def _without_days(facts: Facts) -> dict[str, str]:
    """Facts without the partitions of a day."""
    return {key: about for key, about in facts.items() if not key[-8:].isdigit()}


async def make_manifest(server: Server, release: Release, database: str = "test_manifest") -> str:
    """The manifest as text. Routines of other versions than 0.1.0 and the release's are kept as the file has them."""
    admin = await asyncpg.connect(server.url)
    await admin.execute(f"drop database if exists {database} with (force)")
    await admin.execute(f"create database {database}")
    first = await asyncpg.connect(await make_first_store(server))
    connection = await asyncpg.connect(server.database_url(database))
    for one in (first, connection):
        await one.execute("set search_path = pg_catalog, pg_temp")
    await connection.execute(
        "create schema duly; create table duly.migrations (version integer primary key, name text not null, "
        "checksum text not null, applied_at timestamptz not null default clock_timestamp())"
    )
    steps: dict[int, dict[str, str | None]] = {}
    facts: dict[str, str] = {}
    for step in release.steps:
        await connection.execute(step.sql)
        steps[step.number] = _made(facts, facts := _without_days(await _facts(connection)))
    await connection.execute(release.routines.sql)
    kept = json.loads(MANIFEST.read_text())["routines"] if MANIFEST.exists() else {}
    routines = kept | {
        FIRST_VERSION: _made(_of_step_one(steps), _without_days(await _facts(first))),
        release.version: _made(facts, _without_days(await _facts(connection))),
    }
    await connection.close()
    await first.close()
    await admin.execute(f"drop database {database} with (force)")
    await admin.close()
    document = {"steps": {str(number): steps[number] for number in sorted(steps)}, "routines": routines}
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _of_step_one(steps: dict[int, dict[str, str | None]]) -> dict[str, str]:
    return {key: about for key, about in steps[1].items() if about is not None}
