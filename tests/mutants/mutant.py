"""Defines a mutant and puts it into a copy of the tree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SOURCE = Path("src") / "duly"


class Unmatched(Exception):
    """Raised if the product has changed and the mutant must be updated."""


@dataclass(frozen=True)
class Mutant:
    """`old` stands exactly once in `file`; with `new` in its place, one of `tests` fails.

    `what`: the harm that the mutant does, in words. `file`: a path below src/duly, or `function x` for the file of the
    schema or the routines that defines duly.x. `tests`: arguments for pytest, relative to
    tests; the fewest tests that should notice.
    """

    name: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def named(self) -> tuple[str, ...]:
        """The tests that are named themselves, not by their file."""
        return tuple(test for test in self.tests if "::" in test)

    def path(self, root: Path) -> Path:
        if not self.file.startswith("function "):
            return root / SOURCE / self.file
        head = f"function duly.{self.file.removeprefix('function ')}("
        for path in (root / SOURCE / "store").glob("*/*.sql"):
            if head in path.read_text():
                return path
        raise Unmatched(f"{self.name}: no file of the schema or the routines defines a {head}")

    def mutated(self, root: Path) -> str:
        """The file's text with the mutant in it."""
        path = self.path(root)
        text = path.read_text() if path.exists() else ""
        if text.count(self.old) != 1:
            raise Unmatched(f"{self.name}: {path.name} has this {text.count(self.old)} times, not once: {self.old!r}")
        return text.replace(self.old, self.new)

    def apply(self, root: Path) -> None:
        """Writes the mutant into `root`, which is a copy of the tree, never the checkout."""
        text = self.mutated(root)
        self.path(root).write_text(text)
