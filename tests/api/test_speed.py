"""The API is not slow. The limits here are lenient; `duly bench --only api` checks the limits of the specification."""

from __future__ import annotations

import json
from pathlib import Path

from duly.bench.main import run_bench


def test_a_submit_costs_little_more_than_any_endpoint_with_an_insert(tmp_path: Path) -> None:
    """Measured beside a bare endpoint, with servers and a PostgreSQL of their own."""
    results = tmp_path / "results.json"
    code = run_bench(only=["api"], rounds=3, scale=0.1, json_path=results, database_url=None, home=None, quiet=True)
    assert code == 0
    single, bulk = json.loads(results.read_text())["figures"]
    # The goals are 0.5 and 15,000; a machine that is shared by several builds shows less of both.
    assert single["ratio"] > 0.3, single
    assert bulk["duly"] > 3_000, bulk
