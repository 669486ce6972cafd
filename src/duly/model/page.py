"""One page of a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """One page of a list; `next_cursor` asks for the next one, None at the end."""

    items: list[Item]
    next_cursor: str | None
