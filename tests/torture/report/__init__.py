"""The result of a torture run for people: `report.md` and `report.html` of one run, a table of many.

`reading` gathers what the checker wrote, `markdown` and `page` show it, `timeline` draws faults and lateness. Imports
nothing of the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from . import markdown, page
from .reading import Report

__all__ = ["summary", "write"]


def write(folder: Path) -> None:
    """Beside the records of a run that was checked: `report.md`, and `report.html`, which needs no other file."""
    report = Report.read(folder)
    (folder / "report.md").write_text(markdown.whole(report), encoding="utf-8")
    (folder / "report.html").write_text(page.whole(report), encoding="utf-8")


def summary(folders: Sequence[Path]) -> str:
    """One Markdown table over many runs, by seed, with their sums."""
    return markdown.table_of([Report.read(folder, starts=False) for folder in folders])
