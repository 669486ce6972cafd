"""Tests that the report shows the checker's findings in one file, and that no text in the records becomes markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from torture import checker, report
from torture.histories import START, History, tell
from torture.report import timeline
from torture.report.reading import Report

NASTY = "<img src=x onerror=alert(1)>|\"'&</script>"


def reported(history: History, folder: Path) -> tuple[str, str]:
    checker.check(history.save(folder))
    report.write(folder)
    return (folder / "report.md").read_text(), (folder / "report.html").read_text()


class Page(HTMLParser):
    """The elements of a page with their attributes, its text, and the tags that are still open."""

    _VOID = ("meta", "line", "rect", "circle")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self._VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self._VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def having(self, css: str) -> list[tuple[str, dict[str, str | None]]]:
        return [one for one in self.elements if css in (one[1].get("class") or "").split()]


def test_a_good_run_is_reported_with_its_seed_settings_versions_and_figures(tmp_path: Path) -> None:
    markdown, html = reported(tell().history, tmp_path)
    for text in (markdown, Page(html).text):
        for said in (
            "seed 7",
            "Nothing found.",
            "misfire_grace",
            "worker_lease",
            "postgresql",
            "postgres-crash",
            "synchronous",
        ):
            assert said in text, said
    assert "| healthy | 4 |" in markdown
    assert re.search(r"\| kill \| 1 \|", markdown)


def test_the_page_loads_nothing_and_is_well_formed(tmp_path: Path) -> None:
    _, html = reported(tell().history, tmp_path)
    page = Page(html)
    assert page.open == []
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "link", "img", "iframe", "object"})
    assert not re.search(r"https?://|url\(|@import", html)
    assert "prefers-color-scheme: dark" in html


def test_the_timeline_has_every_fault_as_a_bar_and_every_begin_as_a_dot(tmp_path: Path) -> None:
    history = tell().history
    _, html = reported(history, tmp_path)
    page = Page(html)
    assert len(page.having("fault")) == len(history.faults)
    lateness = json.loads((tmp_path / "figures.json").read_text())["lateness"]
    for period in ("healthy", "faulted", "healed"):
        assert len([one for one in page.having(period) if one[0] == "circle"]) == lateness[period]["count"]
    kill = next(attributes for _, attributes in page.having("fault") if "worker" in str(attributes["class"]))
    crash = next(attributes for _, attributes in page.having("fault") if "primary" in str(attributes["class"]))
    assert _number(kill["x"]) < _number(crash["x"])
    assert _number(crash["width"]) == pytest.approx(44 * _number(kill["width"]), rel=0.05)  # 22 s and half a second


def _number(text: str | None) -> float:
    assert text is not None
    return float(text)


def test_findings_are_shown_with_their_evidence(tmp_path: Path) -> None:
    told = tell()
    told.history.begin_transaction()
    told.history._record(111, told.runs["last"], "succeeded", note={"remark": "second thoughts"})
    markdown, html = reported(told.history, tmp_path)
    for text in (markdown, Page(html).text):
        assert "One finding." in text
        assert "although it was recorded as succeeded already" in text
        assert "second thoughts" in text


def test_nothing_in_the_records_becomes_markup(tmp_path: Path) -> None:
    told = tell()
    h = told.history
    h.run["versions"][NASTY] = NASTY
    h.run["settings"]["note"] = NASTY
    h.fault(NASTY, NASTY, 105, 106)
    h.begin_transaction()
    h._record(111, told.runs["last"], "succeeded", note={"remark": NASTY})
    for line in h.audit:
        if line["table"] == "jobs":
            line["new"]["dedupe_key"] = line["new"]["name"] = NASTY
    markdown, html = reported(h, tmp_path)
    page = Page(html)
    assert page.open == []
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "img"})
    assert NASTY in page.text
    outside = re.sub(r"~~~~json.*?~~~~", "", markdown, flags=re.DOTALL)
    assert "<img" not in outside
    table = [line for line in outside.splitlines() if line.startswith("| setting note")]
    assert len(re.findall(r"(?<!\\)\|", table[0])) == 3


def test_what_was_not_replicated_stands_apart(tmp_path: Path) -> None:
    h = tell().history
    h.run["standby"] = "asynchronous"
    h.fault("promotion", "primary", 60, 62)
    h.asked("submit", "01a00000-0000-7000-8000-000000000009", 59.5)
    h.forgets("01a00000-0000-7000-8000-000000000009", 59.4)
    markdown, html = reported(h, tmp_path)
    for text in (markdown, Page(html).text):
        assert "Nothing found." in text
        assert "Not replicated by PostgreSQL" in text
        assert "01a00000-0000-7000-8000-000000000009" in text


def test_a_run_without_faults_or_begins_can_be_reported(tmp_path: Path) -> None:
    _, html = reported(History(), tmp_path)
    assert "no faults" in Page(html).text


def test_many_runs_are_one_table_with_their_sums(tmp_path: Path) -> None:
    folders = []
    for seed in (12, 3):
        told = tell()
        told.history.run |= {"seed": seed, "coordinator": "etcd"}
        if seed == 12:
            told.history.begin_transaction()
            told.history._record(111, told.runs["last"], "succeeded")
        folders.append(told.history.save(tmp_path / str(seed)))
        checker.check(folders[-1])
    lines = report.summary(folders).splitlines()
    rows: list[dict[str, Any]] = [_cells(lines[0], line) for line in lines[2:]]
    assert [row["seed"] for row in rows] == ["3", "12", "**2 runs**"]
    assert [row["doubled"] for row in rows] == ["0", "1", "**1**"]
    assert [row["faults"] for row in rows] == ["2", "2", "**4**"]
    assert rows[0]["coordinator"] == "etcd"
    assert rows[0]["standby"] == "synchronous"
    assert rows[0]["healthy p50 / p99 / max"].endswith("/ 110 ms")


def _cells(heads: str, line: str) -> dict[str, Any]:
    return dict(
        zip((cell.strip() for cell in heads.split("|")), (cell.strip() for cell in line.split("|")), strict=True)
    )


def test_a_long_run_does_not_make_a_large_page(tmp_path: Path) -> None:
    """At most a few thousand dots are drawn; the latest run is among them."""
    due = [(START * 1_000_000 + number * 10_000, "faulted") for number in range(30_000)]
    starts = [
        (at, at + (90_000_000 if number == 12_345 else 20_000), period) for number, (at, period) in enumerate(due)
    ]
    page = Page(timeline.draw(Report(tmp_path, {"started": START, "ended": START + 400}, [], {}, [], starts)))
    heights = sorted(_number(attributes["cy"]) for tag, attributes in page.elements if tag == "circle")
    assert 1000 < len(heights) <= 4001
    assert heights[0] < heights[1]
