"""Injects errors of a healthy server: the driver gets an error in place of the answer to a chosen statement.

The errors are real: the server raises them, in the open transaction, so they have all their consequences.
Statements are named after their files under `store/sql`; `commit` and `copy` are two more names.

| when | what happens |
| --- | --- |
| before | the statement is not carried out |
| after | it is carried out and rolled back |
| lost | it is carried out (and committed, if no transaction is open), and the connection breaks before the answer |
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import asyncpg
import pytest

from duly.store import notifier, session
from duly.store import pool as pools
from duly.store.statements import statement

T = TypeVar("T")

STATEMENTS = sorted(f"{file.parent.name}/{file.stem}" for file in Path(pools.__file__).parent.glob("sql/*/*.sql"))
_NAMES = {statement(name, audited=audited): name for name in STATEMENTS for audited in (False, True)}
DATA = ("22000", "22023", "22P02", "22003", "23000", "23502", "23505", "23514")
# At least one SQLSTATE of every class in PostgreSQL, and each that was ever met, except those about data.
OTHERS = (
    "03000", "08000", "08006", "09000", "0A000", "0B000", "0F000", "0L000", "0P000", "0Z000", "20000", "21000", "24000",
    "25000", "25001", "25006", "25P02", "25P03", "26000", "27000", "28000", "28P01", "2B000", "2D000", "2F000", "34000",
    "38000", "39000", "3B000", "3D000", "3F000", "40001", "40003", "40P01", "42501", "42601", "42703", "42883", "42P01",
    "44000", "53000", "53100", "53200", "53300", "53400", "54000", "55000", "55006", "55P03", "57000", "57014", "57P01",
    "57P02", "57P03", "57P04", "57P05", "58000", "58030", "72000", "F0000", "HV000", "P0001", "XX000", "XX001", "XX002",
)  # fmt: skip
WHEN = ("before", "after", "lost")
LOST = "08003"


@dataclass
class Injector:
    """Raises errors at statements that were armed with `strike`, or at random ones."""

    dice: random.Random
    chance: float = 0.0
    most: int = 2
    """The maximum number of errors at one statement: a retry must get through in the end."""
    spared: Callable[[str, str], bool] = lambda name, state: False
    states: Collection[str] = OTHERS
    struck: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    _orders: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    _hits: Counter[str] = field(default_factory=Counter)

    def strike(self, name: str, state: str, when: str = "before", *, times: int = 1) -> None:
        """Arms an error for the next executions of this statement."""
        self._orders.setdefault(name, []).extend([(state, when)] * times)

    def draw(self, name: str) -> tuple[str, str] | None:
        self.seen[name] += 1
        if orders := self._orders.get(name):
            drawn = orders.pop(0)
        else:
            if self.dice.random() >= self.chance or self._hits[name] >= self.most:
                return None
            drawn = self.dice.choice(sorted(self.states)), self.dice.choice(WHEN)
            if self.spared(name, drawn[0]):
                return None
            self._hits[name] += 1
        self.struck[name, *drawn] += 1
        return drawn


class Struck(asyncpg.Connection):
    __slots__ = ()
    injector: ClassVar[Injector | None] = None

    async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
        return await self._through(_NAMES.get(query), lambda: asyncpg.Connection.fetch(self, query, *args, **options))

    async def fetchrow(self, query: str, *args: Any, **options: Any) -> Any:
        return await self._through(
            _NAMES.get(query), lambda: asyncpg.Connection.fetchrow(self, query, *args, **options)
        )

    async def prepare(self, query: str, **options: Any) -> Any:
        return await self._through(_NAMES.get(query), lambda: asyncpg.Connection.prepare(self, query, **options))

    async def copy_to_table(self, *args: Any, **options: Any) -> Any:
        return await self._through("copy", lambda: asyncpg.Connection.copy_to_table(self, *args, **options))

    async def execute(self, query: str, *args: Any, **options: Any) -> Any:
        drawn = self.injector.draw("commit") if query == "COMMIT;" and self.injector is not None else None
        if drawn is None:
            return await asyncpg.Connection.execute(self, query, *args, **options)
        if drawn[1] == "lost":
            await asyncpg.Connection.execute(self, query)
            self._lose()
        await asyncpg.Connection.execute(self, "rollback")
        return await self._raise(drawn[0])

    async def _through(self, name: str | None, call: Callable[[], Awaitable[T]]) -> T:
        drawn = self.injector.draw(name) if name is not None and self.injector is not None else None
        if drawn is None:
            return await call()
        state, when = drawn
        if when == "lost":
            await call()
            self._lose()
        if when == "before":
            await self._raise(state)
        if self.is_in_transaction():
            await call()
            await self._raise(state)
        await asyncpg.Connection.execute(self, "begin")
        try:
            await call()
            await self._raise(state)
        finally:
            await asyncpg.Connection.execute(self, "rollback")
        raise AssertionError("unreachable")

    async def _raise(self, state: str) -> None:
        await asyncpg.Connection.execute(
            self, f"do $$ begin raise exception 'injected %', '{state}' using errcode = '{state}'; end $$"
        )

    def _lose(self) -> None:
        self.terminate()
        raise asyncpg.ConnectionDoesNotExistError("the connection was closed in the middle of an operation")


@contextmanager
def injected(injector: Injector) -> Iterator[Injector]:
    """Makes every connection that Duly opens inside the `with` block use this injector."""
    real = pools.connection_options

    def options(url: str, **asked: Any) -> dict[str, Any]:
        return real(url, **asked) | {"connection_class": Struck}

    with pytest.MonkeyPatch.context() as patch:
        for module in (pools, notifier, session):
            patch.setattr(module, "connection_options", options)
        patch.setattr(Struck, "injector", injector)
        yield injector
