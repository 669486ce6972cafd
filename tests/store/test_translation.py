"""The schema's name is a setting: every text of Duly, translated to another schema, names that one alone."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import AsyncIterator, Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import asyncpg
import pytest

import duly
from conftest import Server
from duly.schema_name import DEFAULT_SCHEMA, check_schema
from duly.store.migrate import migrate
from duly.store.pool import Pool, connection_options
from duly.store.statements import statement
from duly.store.steps import this_release
from duly.store.translation import CHANNELS, in_schema, lock_key
from duly.testing import statements as of_testing

# What `duly` means in a text besides the schema: commands that a message recommends, the name of a Python file in a
# comment of a function, and a setting of one transaction.
_OTHERS = re.compile(r"\bduly (submitter add|migrate)\b|\bduly_steps\.former_routines\b|--[^\n]*")
# Names that are also tables, columns, aliases, variables and functions of Duly, and the shortest and the longest.
_NAMES = ("jobs", "runs", "role", "queue", "submit", "now", "clock", "job", "x", "_", "_duly", "duly_work", "a" * 40)


def texts() -> Iterator[tuple[str, str]]:
    """Every SQL text that Duly sends, as it is for the schema `other`."""
    for name in _names(resources.files("duly.store") / "sql"):
        yield name, statement(name, "other")
    for name in _names(resources.files("duly.testing") / "sql"):
        yield f"testing/{name}", in_schema(of_testing.testing_statement(name), "other")
    release = this_release()
    for step in release.steps:
        yield step.label, in_schema(step.sql, "other")
    yield release.routines.label, in_schema(release.routines.sql, "other")


def _names(folder: Traversable, prefix: str = "") -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _names(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".sql"):
            yield prefix + entry.name.removesuffix(".sql")


def test_no_text_for_another_schema_says_duly() -> None:
    left = {
        name: found
        for name, text in texts()
        if (found := re.findall(r".*duly.*|.*\b1685417081\b.*", _OTHERS.sub("", text)))
    }
    assert not left


def test_the_texts_are_there_and_name_the_other_schema() -> None:
    found = dict(texts())
    assert len(found) > 150
    assert "from other.job_status" in found["jobs/get"]
    assert "pg_notify('other_work'" in found["jobs/submit"]
    assert "'other'::pg_catalog.regnamespace" in found["stores/lock_holders"]
    assert "format('create table other.%I (like other.%I" in found["0001_baseline"]
    assert f"pg_try_advisory_xact_lock({lock_key('other')}, 1)" in found["0001_baseline"]


def test_every_channel_is_translated() -> None:
    sent = {channel for name, _ in texts() for channel in _notified(name)}
    assert sent == {f"duly_{word}" for word in CHANNELS}
    assert {in_schema(channel, "other") for channel in sent} == {f"other_{word}" for word in CHANNELS}
    assert not [word for word in CHANNELS if "_" in word], "two schemas could share a channel"


def _notified(name: str) -> list[str]:
    """The channels of a text, as it is written."""
    release = this_release()
    steps = {step.label: step.sql for step in release.steps} | {release.routines.label: release.routines.sql}
    text = steps[name] if name in steps else "" if name.startswith("testing/") else statement(name)
    return re.findall(r"pg_notify\('(\w+)'", text)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("select duly.now()", "select other.now()"),
        ("'duly.jobs'::regclass", "'other.jobs'::regclass"),
        ("to_regclass('duly.' || name)", "to_regclass('other.' || name)"),
        ("grant usage on schema duly to x; drop schema duly", "grant usage on schema other to x; drop schema other"),
        ("nspname = 'duly' or oid = 'duly'::regnamespace", "nspname = 'other' or oid = 'other'::regnamespace"),
        ("pg_notify('duly_due', '')", "pg_notify('other_due', '')"),
        # Not the schema.
        ("application_name = 'duly'", "application_name = 'duly'"),
        ("see duly/checks.py, run: duly migrate", "see duly/checks.py, run: duly migrate"),
        ("my_duly.x, x.duly.y, duly_worker, unduly.", "my_duly.x, x.duly.y, duly_worker, unduly."),
    ],
)  # fmt: skip
def test_a_reference_is_translated_and_nothing_else(text: str, other: str) -> None:
    assert in_schema(text, "other") == other


def test_the_default_schema_costs_nothing_and_others_are_translated_once() -> None:
    text = "select duly.now()"
    assert in_schema(text, DEFAULT_SCHEMA) is text
    assert in_schema(text, "other") is in_schema(text, "other")
    assert statement("runs/claim", "other") is statement("runs/claim", "other")


def test_each_schema_has_a_key_of_its_own() -> None:
    assert lock_key(DEFAULT_SCHEMA) == 1685417081
    keys = {lock_key(name) for name in (*_NAMES, DEFAULT_SCHEMA)}
    assert len(keys) == len(_NAMES) + 1
    assert all(0 < key < 2**31 for key in keys)


@pytest.mark.parametrize(
    "name",
    ["", "Jobs", "1st", "a-b", "a b", "a.b", 'a"', "é", "a" * 41, "duly\n", "public", "pg_duly", "select", "loop"],
)
def test_names_that_a_store_cannot_have_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"choose another name|lower-case letters, digits and _"):
        check_schema(name)


@pytest.fixture
async def empty_url(server: Server) -> AsyncIterator[str]:
    name = f"test_schemas_{os.getpid()}"
    connection = await asyncpg.connect(server.url)
    await connection.execute(f"create database {name}")
    yield server.database_url(name)
    await connection.execute(f"drop database {name} with (force)")
    await connection.close()


async def test_postgresql_takes_every_text_for_names_of_any_kind(empty_url: str) -> None:
    """Each name has a store of its own in one database, and every statement can be prepared there."""
    connection = await asyncpg.connect(empty_url, statement_cache_size=0, server_settings=_settings(empty_url))
    for name in _NAMES:
        pool = await Pool.connect(empty_url, size=1, schema=check_schema(name))
        await migrate(pool, shards=2)
        await pool.close()
        for one in _names(resources.files("duly.store") / "sql"):
            await connection.prepare(statement(one, name))
        assert await connection.fetchval(in_schema("select duly.submit('x', allow_unknown_handler => true)", name))
    await connection.close()


def _settings(url: str) -> dict[str, str]:
    settings: dict[str, str] = connection_options(url)["server_settings"]
    return settings


async def test_no_name_that_postgresql_reads_as_a_word_is_allowed(empty_url: str) -> None:
    connection = await asyncpg.connect(empty_url)
    words = [row["word"] for row in await connection.fetch("select word from pg_get_keywords() where catcode <> 'U'")]
    await connection.close()
    allowed = []
    for word in words:
        try:
            allowed.append(check_schema(word))
        except ValueError:
            continue
    assert len(words) > 100
    assert not allowed


# Calls that open a way to a store, or ask for a statement's text.
_CALLS = {"Pool.connect", "Notifier", "InTransaction", "DirectSession.open", "Joined", "statement"}
# Files whose calls need no schema: the bench has stores of its own in the default one; statements that migrate and
# foreign send name no table, or go through a connection that translates.
_NAMELESS = ("statement('stores/notifications')", "statement('stores/listening')", "statement('diagnosis/session')")
_WITHOUT = re.compile(r"bench/|store/(migrate|foreign)\.py")


def test_no_code_forgets_the_schema() -> None:
    """Every pool, listener and session is opened for the store's schema, and every statement is asked for in it."""
    forgotten = []
    seen = set()
    source = Path(duly.__file__).parent
    for file in sorted(source.rglob("*.py")):
        name = file.relative_to(source).as_posix()
        if _WITHOUT.match(name):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or (called := ast.unparse(node.func)) not in _CALLS:
                continue
            seen.add(called)
            given = [*(ast.unparse(one) for one in node.args), *(one.arg or "" for one in node.keywords)]
            if ast.unparse(node) not in _NAMELESS and not any("schema" in one for one in given):
                forgotten.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert not forgotten
    assert seen == _CALLS
