"""The contract of a coordinator with the rest of a node.

A coordinator decides which shards this node leads. Leadership is a `Term`: a shard and an epoch that was raised in
PostgreSQL before the term began. Terms are pushed to a `TermListener`; nothing polls for them.

The promise is weak on purpose. A term is a hint that this node should do the work; the fire transaction, which compares
the epoch, is what keeps an occurrence from firing twice. So a coordinator errs on the side of stepping down: when it
cannot be sure that its lease still stands, it ends its terms.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol

from duly.service import Service


@dataclass(frozen=True, slots=True)
class Term:
    shard: int
    epoch: int


class TermListener(Protocol):
    """Receives terms as they begin and end, on the event loop, in order."""

    def term_began(self, term: Term) -> None: ...

    def term_ended(self, term: Term) -> None: ...


class Coordinator(Service):
    """Keeps this node's lease and its terms. `terms`: the present ones, by shard."""

    def __init__(self, listener: TermListener) -> None:
        super().__init__()
        self._listener = listener
        self.terms: dict[int, Term] = {}

    def not_ready(self) -> str | None:
        """What is wrong, if this node is no member at the moment. Called from other threads."""
        return None

    @abstractmethod
    async def leave(self) -> None:
        """Hands all shards over at once: the graceful end."""

    def _begin(self, term: Term) -> None:
        self.terms[term.shard] = term
        self._listener.term_began(term)

    def _end(self, shard: int) -> None:
        if (term := self.terms.pop(shard, None)) is not None:
            self._listener.term_ended(term)

    def _end_all(self) -> None:
        for shard in list(self.terms):
            self._end(shard)
