"""The result of a torture run for people: `report.md` and `report.html` of one run, a table of many.

`reading` reads the checker's files, `markdown` and `page` show them, `timeline` draws faults and lateness. Does not
import the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from . import markdown, page
from .reading import Report

__all__ = ["summary", "write"]


def write(folder: Path) -> None:
    """Writes `report.md` and the self-contained `report.html` beside the records of a checked run."""
    report = Report.read(folder)
    (folder / "report.md").write_text(markdown.whole(report), encoding="utf-8")
    (folder / "report.html").write_text(page.whole(report), encoding="utf-8")


def summary(folders: Sequence[Path]) -> str:
    """One Markdown table over many runs, by seed, with their sums."""
    return markdown.table_of([Report.read(folder, starts=False) for folder in folders])
