"""The page of `make bench-peers` can be trusted: medians, reasons instead of figures, and plots that show both."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from peers import page, plots, setting_up
from peers.__main__ import PUBLISHED, write
from peers.results import Results, Tool

_SVG = "{http://www.w3.org/2000/svg}"


def _results(*tools: Tool) -> Results:
    return Results(list(tools), {"taken": "today", "cores": "2"}, rounds=3, quick=False)


def _duly() -> Tool:
    duly = Tool("duly", "Duly", {"duly": "1.0"})
    for drained in (50_000, 40_000, 60_123):
        duly.add({"drain_1": drained / 2, "drain_2": drained, "hot_second": 1.0, "lag_p50": 2.0, "lag_p99": 8.0})
    duly.jobs["hot-second"] = 50_000
    return duly


def test_the_median_of_the_rounds_is_what_is_shown() -> None:
    duly = _duly()
    assert duly.median("drain_2") == 50_000
    assert duly.median("idle") is None
    (row,) = [line for line in page.generated(_results(duly)).splitlines() if line.startswith("| Duly 1.0 ")]
    assert row == "| Duly 1.0 | – | 25,000 | 50,000 | – | 2.0 / 8.0 | 50,000: 1.0 s | – |"


def test_a_failure_is_shown_with_its_reason_and_the_rest_as_it_is() -> None:
    peer = Tool("awa-pg", "awa-pg", {"awa-pg": "0.6"}, failures={"hot-second": "none of 50,000 ran", "lag": "lost"})
    peer.add({"drain_1": 9_876.0, "drain_2": 11_299.0})
    text = page.generated(_results(_duly(), peer))
    assert "| awa-pg 0.6 | – | 9,880 | 11,300 | – | failed (1) | failed (2) | – |" in text
    assert "1. awa-pg: lost\n2. awa-pg: none of 50,000 ran\n" in text


def test_a_peer_that_could_not_be_installed_fails_everywhere_for_one_reason() -> None:
    peer = Tool("pg-boss", "pg-boss", failures={"set up": "npm failed: no such package"})
    text = page.generated(_results(_duly(), peer))
    assert text.count("failed (1)") == 7
    assert text.count("no such package") == 1


def test_a_figure_of_some_rounds_outlives_a_failure_in_a_later_one() -> None:
    duly = _duly()
    duly.failures["drain"] = "the third round stalled"
    assert duly.failure_of("drain_2") is None
    assert "stalled" not in page.generated(_results(duly))


def test_peers_stand_in_the_order_of_their_speed_after_ours() -> None:
    slow, fast, broken = Tool("slow", "slow"), Tool("fast", "fast"), Tool("broken", "broken")
    slow.add({"drain_1": 1_000.0})  # no figure for a second process
    fast.add({"drain_1": 500.0, "drain_2": 2_000.0})
    ordered = _results(broken, slow, fast, _duly()).ordered()
    assert [tool.name for tool in ordered] == ["duly", "fast", "slow", "broken"]


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    kept = f"# Mine\n\nabove\n\n{page.BEGIN}\nold figures\n{page.END}\n\nbelow\n"
    written = page.updated(kept, _results(_duly()))
    assert written.startswith("# Mine\n\nabove\n")
    assert written.endswith(f"{page.END}\n\nbelow\n")
    assert "old figures" not in written
    assert page.updated(written, _results(_duly())) == written
    with pytest.raises(ValueError, match="lost one of its marks"):
        page.updated("# Mine\n", _results(_duly()))


@pytest.mark.parametrize(
    ("value", "text"), [(0.04, "0.0"), (7.96, "8.0"), (123.4, "123"), (1_234.0, "1,230"), (52_649.0, "52,600")]
)
def test_figures_have_as_many_digits_as_they_deserve(value: float, text: str) -> None:
    assert page.shown(value) == text


def test_bars_are_as_long_as_their_figures_and_who_has_none_has_no_bar() -> None:
    half = Tool("half", "half & half")
    half.add({"drain_1": 12_500.0, "drain_2": 25_000.0})
    chart = next(chart for chart in plots.CHARTS if chart.file == "drain.svg")
    drawing = ElementTree.fromstring(plots.make(chart, [_duly(), half, Tool("none", "none")]))
    widths = [float(bar.attrib["width"]) for bar in drawing.iter(f"{_SVG}rect")]
    assert [width / max(widths) for width in widths] == pytest.approx([0.5, 1, 0.25, 0.5], abs=0.001)
    texts = [text.text for text in drawing.iter(f"{_SVG}text")]
    assert "half & half" in texts
    assert "none" not in texts


def test_delays_are_drawn_by_their_order_of_magnitude() -> None:
    peer = Tool("slow", "slow")
    peer.add({"lag_p50": 1_000.0, "lag_p99": 10_000.0})
    quick = Tool("quick", "quick")
    quick.add({"lag_p50": 1.0, "lag_p99": 10.0})
    chart = next(chart for chart in plots.CHARTS if chart.file == "lag.svg")
    drawing = ElementTree.fromstring(plots.make(chart, [quick, peer]))
    widths = [float(bar.attrib["width"]) for bar in drawing.iter(f"{_SVG}rect")]
    assert widths[3] - widths[2] == pytest.approx(widths[1], abs=3)  # a factor of ten has the same width everywhere
    assert widths[0] > 0
    ten = Tool("ten", "ten")
    ten.add({"lag_p50": 10.0})
    assert plots.make(chart, [ten])  # a single power of ten, so the axis has no range


def test_a_hot_second_of_fewer_jobs_is_drawn_as_a_rate() -> None:
    peer = Tool("slow", "slow", jobs={"hot-second": 5_000})
    peer.add({"hot_second": 2.0})
    chart = next(chart for chart in plots.CHARTS if chart.file == "hot-second.svg")
    texts = [text.text for text in ElementTree.fromstring(plots.make(chart, [_duly(), peer])).iter(f"{_SVG}text")]
    assert {"50,000/s", "2,500/s"} <= set(texts)


def test_what_is_written_can_be_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    write(_results(_duly()), folder)
    document = json.loads((folder / "results.json").read_text())
    assert document["tools"][0]["figures"]["drain_2"] == {"median": 50_000, "rounds": [50_000, 40_000, 60_123]}
    again = Results.from_json(document)
    assert page.generated(again) == page.generated(_results(_duly()))
    assert {chart.file for chart in plots.CHARTS} <= {path.name for path in folder.iterdir()}


def test_the_published_page_has_its_marks() -> None:
    assert page.updated((PUBLISHED / "README.md").read_text(encoding="utf-8"), _results(_duly()))


@pytest.mark.parametrize("name", setting_up.peer_names())
def test_every_driver_names_the_versions_it_needs(name: str) -> None:
    stem = setting_up.DRIVERS / name.replace("-", "_")
    if (python := stem.with_suffix(".py")).exists():
        dependencies = setting_up.python_dependencies(python.read_text(encoding="utf-8"))
        assert all("==" in dependency for dependency in dependencies)
    else:
        dependencies = setting_up.node_dependencies(stem.with_suffix(".mjs").read_text(encoding="utf-8"))
        assert all("@" in dependency for dependency in dependencies)
    assert dependencies


def test_the_reason_is_the_line_that_says_most() -> None:
    assert setting_up.reason_in("npm warn old\nnpm error code ETARGET\na log is at x\n") == "npm error code ETARGET"
    assert setting_up.reason_in("\n \n") == "it said nothing"
    assert setting_up.reason_in("just\nthis\n") == "this"
