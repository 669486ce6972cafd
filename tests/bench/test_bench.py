"""The output of `duly bench` can be trusted: the sums, the verdicts, and that a wrong count is a failure."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from conftest import Server
from duly.bench import backlog
from duly.bench.figures import Bar, Figure, Spread, percentile
from duly.bench.flow import Flow, Passed, _became_of, _check
from duly.bench.lab import verify
from duly.bench.main import LONG, MEASURES, NAMES, _chosen, run_bench
from duly.bench.processes import BenchFailed, as_arguments
from duly.bench.registered import _insert
from duly.bench.report import make_document, make_table, shown, shown_bar
from duly.bench.server import Outcome, Store, bench_settings
from duly.errors import InvalidInput
from duly.store.pool import Pool


def test_percentile_is_the_nearest_rank() -> None:
    hundred = list(range(1, 101))
    assert [percentile(hundred, percent) for percent in (1, 50, 99, 100)] == [1, 50, 99, 100]
    assert percentile([7], 99) == 7
    assert percentile([3, 1, 2], 50) == 2
    assert percentile([1, 2], 50) == 1


@given(st.lists(st.integers(), min_size=1), st.floats(0.1, 100))
def test_percentile_is_a_value_that_enough_values_do_not_exceed(values: list[int], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= percent / 100 * len(values) - 1e-6


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_a_ratio_is_taken_round_by_round() -> None:
    # The machine was half as fast in the second round; the ratio is the same.
    figure = Figure("drain", "drain", "/s", duly=[50, 25, 51], raw=[100, 50, 100])
    assert figure.ratio == 0.5
    assert figure.duly_median == 50
    assert figure.raw_median == 100


@pytest.mark.parametrize(
    ("unit", "values", "raw", "bar", "goal", "verdict"),
    [
        ("/s", [31_000], [60_000], Bar(30_000), Bar(52_600, 0.35), "bar"),
        ("/s", [53_000], [60_000], Bar(30_000), Bar(52_600, 0.35), "goal"),
        ("/s", [53_000], [600_000], Bar(30_000), Bar(52_600, 0.35), "bar"),
        ("/s", [29_000], [60_000], Bar(30_000), Bar(52_600, 0.35), "below"),
        ("ms", [8.1], [3.0], Bar(20), Bar(8), "bar"),
        ("ms", [7.9], [3.0], Bar(20), Bar(8), "goal"),
        ("s", [2.1], [1.0], Bar(), Bar(2), "below"),
        ("s", [2.1], [1.0], Bar(), Bar(), ""),
        ("s", [], [], Bar(), Bar(2), ""),
    ],
)
def test_verdicts(unit: Any, values: list[float], raw: list[float], bar: Bar, goal: Bar, verdict: str) -> None:
    assert Figure("bench", "what", unit, bar, goal, values, raw).verdict == verdict


def test_a_spread_is_three_figures_in_milliseconds() -> None:
    spread = Spread("lag", "due to start,", goal=Bar(10))
    spread.add_duly([1000 * n for n in range(1, 101)])
    spread.add_raw([500])
    assert [figure.what for figure in spread.figures] == [f"due to start, {part}" for part in ("p50", "p99", "max")]
    assert [figure.duly for figure in spread.figures] == [[50.0], [99.0], [100.0]]
    assert [figure.raw for figure in spread.figures] == [[0.5], [0.5], [0.5]]


def test_values_are_shown_with_the_digits_they_deserve() -> None:
    assert shown(52_600.4, "/s") == "52,600/s"
    assert shown(2.345, "ms") == "2.35 ms"
    assert shown(1234.5, "ms") == "1,234 ms"
    assert shown(None, "s") == "–"
    figure = Figure("drain", "drain", "/s")
    assert shown_bar(figure, Bar(52_600, 0.35)) == "≥ 52,600/s, ≥ 0.35 of raw"
    assert shown_bar(Figure("lag", "lag", "ms"), Bar(10)) == "≤ 10 ms"
    assert shown_bar(figure, Bar(1_000_000)) == "≥ 1,000,000/s"
    assert shown_bar(figure, Bar()) == ""


def test_the_table_has_a_row_for_every_figure() -> None:
    console = Console(width=140, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(
        make_table(
            [
                Figure("drain", "drain, 1 process", "/s", Bar(1), Bar(2), [3], [4]),
                Figure("lag", "due to start, p99", "ms", duly=[5.0]),
            ]
        )
    )
    console.file.close()
    text = console.export_text()
    assert "drain, 1 process" in text
    assert "0.75" in text
    assert "due to start, p99" in text


def test_the_document_holds_every_round() -> None:
    figure = Figure("drain", "drain, 1 process", "/s", Bar(1), Bar(2, 0.5), [3, 5, 4], [4, 4, 4])
    document = make_document([figure], {"cores": "2"}, rounds=3, scale=1, failures=[])
    assert document["verified"] is True
    assert document["figures"][0]["rounds"] == {"duly": [3, 5, 4], "raw": [4, 4, 4]}
    assert document["figures"][0]["duly"] == 4
    assert document["figures"][0]["verdict"] == "goal"
    assert json.loads(json.dumps(document)) == document
    assert make_document([], {}, rounds=1, scale=1, failures=["a count was wrong"])["verified"] is False


def test_arguments_of_processes() -> None:
    assert as_arguments(database_url="x", held=True, profile=None, daily=False) == ["--database-url", "x", "--held"]


def test_the_environment_does_not_change_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DULY_CONCURRENCY", "7")
    monkeypatch.setenv("DULY_POLL_SECONDS", "60")
    settings = bench_settings("postgresql://somewhere/else")
    assert settings.database_url == "postgresql://somewhere/else"
    assert (settings.concurrency, settings.poll_seconds) == (100, 1)


@pytest.mark.parametrize("outcome", [Outcome(9, 9, 1, 0, 10), Outcome(10, 9, 0, 0, 10), Outcome(10, 10, 0, 1, 10)])
async def test_a_count_that_is_wrong_is_a_failure(outcome: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    async def held(_: Store) -> Outcome:
        return outcome

    monkeypatch.setattr(Store, "outcome", held)
    with pytest.raises(BenchFailed, match="10 runs should be recorded once each"):
        await verify(Store("name", "url"), 10, "drain by Duly")


@pytest.mark.parametrize(
    "options",
    [
        {"only": ["nap"]},
        {"jobs": 0},
        {"seconds": 0},
        {"rounds": 0},
        {"scale": 0.0},
        {"scale": float("nan")},
        {"scale": float("inf")},
        {"json_path": Path("no/such/folder/results.json")},
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_starts(options: dict[str, Any]) -> None:
    usual = {"only": None, "rounds": 1, "scale": 1.0, "json_path": None, "database_url": None, "home": None}
    with pytest.raises(InvalidInput):
        run_bench(**{**usual, **options})


@pytest.fixture
def home() -> Iterator[Path]:
    """A home outside pytest's own folder: the next pytest that root starts closes that folder to the account that runs
    our server, and the server would end in the middle of its work."""
    with TemporaryDirectory(prefix="duly-bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder) / "home"


def test_a_small_bench_from_end_to_end(tmp_path: Path, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Uses a PostgreSQL and processes of its own, which are all gone at the end; takes a few seconds."""
    results = tmp_path / "results.json"
    code = run_bench(only=["drain"], rounds=1, scale=0.005, json_path=results, database_url=None, home=home)
    assert code == 0
    document = json.loads(results.read_text())
    assert document["verified"] is True
    figures = {figure["what"]: figure for figure in document["figures"]}
    assert figures["drain, 2 processes"]["duly"] > 0
    assert figures["drain, 2 processes"]["raw"] > 0
    assert "fsync on" in document["facts"]["settings"]
    assert "drain" in NAMES
    told = capfd.readouterr()
    assert "drain, 1 process" in told.out
    assert "drain: round 1 of 1, raw SQL in 2 processes" in told.err
    assert (home / "postgres" / "data").exists()
    assert not (home / "postgres" / "data" / "postmaster.pid").exists()


def test_what_registered_jobs_cost_is_measured(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    code = run_bench(
        only=["registered"], rounds=1, scale=0.01, json_path=results, database_url=None, home=None, jobs=5_000
    )
    assert code == 0
    figures = {figure["what"]: figure["duly"] for figure in json.loads(results.read_text())["figures"]}
    assert 0 < figures["start to first fire, 5,000 jobs"] < 60
    assert figures["fired of 500 due at once, 1,000 jobs"] > 0
    assert 10 < figures["scheduler's memory, 5,000 jobs"] < 400


def test_what_takes_long_is_measured_only_when_asked_for() -> None:
    assert set(_chosen(None)) == set(MEASURES)
    assert not set(LONG) & set(MEASURES)
    assert _chosen(["backlog", "drain"]) == ["drain", "backlog"]


@pytest.fixture(scope="module")
def long_figures(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """The figures of all long benchmarks, each run for one second."""
    results = tmp_path_factory.mktemp("long") / "results.json"
    code = run_bench(
        only=list(LONG),
        rounds=1,
        scale=0.002,
        json_path=results,
        database_url=server.url,
        home=None,
        jobs=40_000,
        seconds=1,
    )
    assert code == 0
    return {f"{one['bench']}: {one['what']}": one["duly"] for one in json.loads(results.read_text())["figures"]}


def test_a_steady_flow_is_measured(long_figures: dict[str, float]) -> None:
    figures = {what: value for what, value in long_figures.items() if what.startswith("steady")}
    p50, p99, longest = (figures[f"steady: due to start with 40,000 jobs, {part}"] for part in ("p50", "p99", "max"))
    assert p50 <= p99 <= longest
    assert 0 < longest < 60_000
    assert [value for what, value in figures.items() if "lost of" in what] == [0]
    assert all(value > 0 for what, value in figures.items() if "fired, of" in what)
    assert 10 < figures["steady: scheduler's memory, 40,000 jobs"] < 400


def test_runs_with_handlers_that_wait_are_measured(long_figures: dict[str, float]) -> None:
    figures = {what: value for what, value in long_figures.items() if what.startswith("handlers")}
    assert 0 < figures["handlers: due to start, 2 ms handlers, max"] < 60_000
    assert [value for what, value in figures.items() if "lost of" in what] == [0]
    assert figures["handlers: grown meanwhile"] >= 0


def test_draining_a_backlog_is_measured_at_both_depths(long_figures: dict[str, float]) -> None:
    for processes in ("1 process", "2 processes"):
        few = long_figures[f"backlog: drain, 20 waiting, {processes}"]
        many = long_figures[f"backlog: drain, 40,000 waiting, {processes}"]
        assert long_figures[f"backlog: 40,000 by 20 waiting, {processes}"] == pytest.approx(many / few)
        assert long_figures[f"backlog: their first 20 only, {processes}"] > 0


@pytest.mark.parametrize("outcome", [Outcome(4, 4, 5, 0, 10), Outcome(4, 3, 6, 0, 10), Outcome(4, 4, 5, 1, 10)])
async def test_a_run_that_is_neither_drained_nor_waiting_is_a_failure(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def held(_: Store) -> Outcome:
        return outcome

    monkeypatch.setattr(Store, "outcome", held)
    with pytest.raises(BenchFailed, match="10 runs should be recorded or waiting"):
        await backlog._verify(Store("name", "url"), 10)


_FLOW = Flow("handlers", 10, "every 1m", 60.0, "nap", processes=1, concurrency=1)


async def test_an_occurrence_that_left_nothing_is_lost(pool: Pool) -> None:
    """Ten jobs in three minutes have 30 due occurrences: one is not in the history, and one was missed."""
    store, first = Store("name", pool.url), datetime(2026, 3, 1, 12, tzinfo=UTC)
    await _insert(store, 10, first, 60, "nap", "every 1m")
    async with pool.transaction() as transaction:
        await transaction.connection.execute(
            """
            insert into duly.history (job_id, scheduled_at, fired_at, started_at, finished_at, attempt, status)
            select job_id, at, at, case when number = 2 then null else at + number * interval '1 ms' end,
                at + interval '1 s', 1, case when number = 2 then 'missed' else 'succeeded' end
            from (
                select job_id, at, row_number() over (order by at) as number
                from duly.jobs cross join generate_series(0, 3) k
                cross join lateral (select start_at + k * interval '1 minute' as at) one
            ) due
            where number <> 1
            """
        )
    passed = await _became_of(store, _FLOW, first, first + timedelta(minutes=3), (0, 0), 0)
    assert (passed.due, passed.lost, passed.succeeded) == (30, 1, 28)
    assert passed.lags_ms == [3.0, 16.0, 30.0, 30.0]
    with pytest.raises(BenchFailed, match="all 30 occurrences should have succeeded"):
        _check(_FLOW, passed)


def test_a_run_that_started_too_early_is_a_failure() -> None:
    passed = Passed(1, 0, 1, 1, 1, (-51.0, 0, 0, 0), waiting_first=0, waiting_last=0, memory=0)
    with pytest.raises(BenchFailed, match=r"51\.0 ms before it was due"):
        _check(_FLOW, passed)
