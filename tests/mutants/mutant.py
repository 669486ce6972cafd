"""What a mutant is, and how it is put into a copy of the tree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SOURCE = Path("src") / "duly"


class Unmatched(Exception):
    """The product has changed, and the mutant must follow it."""


@dataclass(frozen=True)
class Mutant:
    """`old` stands exactly once in `file`; with `new` in its place, one of `tests` fails.

    `what`: the harm that is done, in words. `file`: below src/duly, or `function x` for the schema file that
    defines duly.x. `tests`: below tests, what pytest is called with: the fewest that should notice.
    """

    name: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def named(self) -> tuple[str, ...]:
        """Those of its tests that are no whole file."""
        return tuple(test for test in self.tests if "::" in test)

    def path(self, root: Path) -> Path:
        if not self.file.startswith("function "):
            return root / SOURCE / self.file
        head = f"function duly.{self.file.removeprefix('function ')}("
        for path in (root / SOURCE / "store" / "schema").glob("*.sql"):
            if head in path.read_text():
                return path
        raise Unmatched(f"{self.name}: no file of the schema defines a {head}")

    def mutated(self, root: Path) -> str:
        """The file's text with the mutant in it."""
        path = self.path(root)
        text = path.read_text() if path.exists() else ""
        if text.count(self.old) != 1:
            raise Unmatched(f"{self.name}: {path.name} has {text.count(self.old)} times, not once: {self.old!r}")
        return text.replace(self.old, self.new)

    def apply(self, root: Path) -> None:
        """To a copy of the tree, never to the checkout."""
        text = self.mutated(root)
        self.path(root).write_text(text)
