"""Examples, dashboard and runbooks: Prometheus' tools accept them, and what they name exists."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import typer
import yaml

from duly import monitoring
from duly.api.metrics import Metrics
from duly.cli.main import app, execute
from duly.figures import FIGURES, LAG_BUCKETS
from duly.operations import StoreOperations
from duly.store.pool import Pool
from monitoring.promtool import check, metrics_in, needs_amtool, needs_promtool

ROOT = Path(__file__).parents[2]
RUNBOOKS = sorted((ROOT / "docs/runbooks").glob("*.md"))
DASHBOARD: dict[str, Any] = json.loads(monitoring.text_of("dashboard"))
ALERTMANAGER: dict[str, Any] = yaml.safe_load(monitoring.text_of("alertmanager"))
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(monitoring.rules())["groups"] for rule in group["rules"]
]
ALERTS = {rule["alert"] for rule in RULES if "alert" in rule}
RECORDED = {rule["record"] for rule in RULES if "record" in rule}

#: Every figure of every kind of process, and those of processes as such that the dashboard shows.
METRICS = {*FIGURES, *(family.name for family in Metrics(cast("StoreOperations", None)).collect())} | {
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", page.read_text())


def panels() -> Iterator[tuple[str, str]]:
    """Each expression of the dashboard, with its panel's title."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def as_prometheus_reads(expression: str) -> str:
    """A dashboard's expression with Grafana's variables filled in."""
    return expression.replace("$__rate_interval", "1m").replace("$cluster", ".*")


def assert_sound(expressions: list[str], folder: Path) -> None:
    """promtool reads each, and it names only metrics that exist."""
    rules = [{"record": f"tested:expression:{number}", "expr": text} for number, text in enumerate(expressions)]
    file = folder / "expressions.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "tested", "rules": rules}]}))
    assert f"{len(rules)} rules found" in check("promtool", "check", "rules", file)
    for expression in expressions:
        assert metrics_in(expression) <= METRICS, expression
        assert set(re.findall(r"cluster:[\w:]+", expression)) <= RECORDED, expression


@needs_promtool
def test_the_example_for_prometheus_is_accepted_and_names_the_jobs_of_the_rules(tmp_path: Path) -> None:
    example = monitoring.text_of("prometheus")
    (tmp_path / "prometheus.yml").write_text(example)
    (tmp_path / "duly-rules.yml").write_text(monitoring.rules())
    (tmp_path / "duly-monitor-key").write_text("key\n")
    checked = check("promtool", "check", "config", tmp_path / "prometheus.yml")
    assert f"{len(RULES)} rules found" in checked
    jobs = {job["job_name"] for job in yaml.safe_load(example)["scrape_configs"]}
    named = {name for rule in RULES for name in re.findall(r'job="([^"]+)"', rule["expr"])}
    assert named <= jobs == {"duly-api", "duly-scheduler", "duly-worker"}


@needs_amtool
def test_the_example_for_alertmanager_is_accepted_and_pages_only_for_critical_alerts(tmp_path: Path) -> None:
    file = tmp_path / "alertmanager.yml"
    file.write_text(monitoring.text_of("alertmanager"))
    assert "2 receivers" in check("amtool", "check-config", file)
    for severity, receiver in {"critical": "pager", "warning": "team"}.items():
        routed = check("amtool", "config", "routes", "test", f"--config.file={file}", f"severity={severity}")
        assert routed.strip() == receiver


def test_inhibitions_are_of_alerts_that_exist_and_silence_no_alert_by_itself() -> None:
    for rule in ALERTMANAGER["inhibit_rules"]:
        (source,), (target,) = (
            [re.fullmatch(r'alertname (=~?) "(.+)"', text) for text in rule[f"{side}_matchers"]]
            for side in ("source", "target")
        )
        assert source is not None
        assert target is not None
        assert source[2] in ALERTS
        silenced = [{name for name in ALERTS if re.fullmatch(one, name)} for one in target[2].split("|")]
        assert all(silenced), target[2]
        assert source[2] not in set().union(*silenced)
        assert rule["equal"] == ["cluster"]


@needs_promtool
def test_every_expression_of_the_dashboard_is_sound(tmp_path: Path) -> None:
    assert_sound([as_prometheus_reads(expression) for _, expression in panels()], tmp_path)


@needs_promtool
def test_every_expression_of_the_rules_names_metrics_that_exist(tmp_path: Path) -> None:
    assert_sound([rule["expr"] for rule in RULES], tmp_path)


def test_the_histogram_has_the_bounds_of_the_rules() -> None:
    bounds = {float(bound) for rule in RULES for bound in re.findall(r'le="([^"]+)"', rule["expr"])}
    assert bounds == {1.0}
    assert {*bounds, 30.0} <= set(LAG_BUCKETS)


def test_the_dashboard_is_whole() -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["SLOs", "Fires", "Runs", "Workers", "Queues", "Store", "API and processes"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        if panel["type"] == "row":
            continue
        assert (bool(panel["targets"]), bool(panel["description"])) == (True, True)
        box = panel["gridPos"]
        cells = {(x, y) for x in range(box["x"], box["x"] + box["w"]) for y in range(box["y"], box["y"] + box["h"])}
        assert places.isdisjoint(cells), panel["title"]
        assert box["x"] + box["w"] <= 24
        places |= cells
    for title, expression in panels():
        assert 'cluster=~"$cluster"' in expression, title
    shown = set().union(*(metrics_in(expression) for _, expression in panels()))
    assert METRICS - shown == set(), "every metric is shown"


@needs_promtool
@pytest.mark.parametrize("page", [*RUNBOOKS, ROOT / "docs/alerts.md"], ids=lambda page: page.stem)
def test_what_a_page_says_to_look_at_can_be_looked_at(page: Path, tmp_path: Path) -> None:
    expressions = [line for block in blocks(page, "promql") for line in block.splitlines()]
    if expressions:
        assert_sound(expressions, tmp_path)
    for block in blocks(page, "sh"):
        for line in block.splitlines():
            _assert_command(shlex.split(line)[1:])
    for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / link).exists(), link


def _assert_command(words: list[str]) -> None:
    """The command exists, with these options."""
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not hasattr(command, "commands"), words
    options = {name for one in command.params for name in one.opts}
    assert {word for word in words if word.startswith("--")} <= options, words


async def test_the_sql_of_the_runbooks_runs(pool: Pool) -> None:
    statements = [block for page in RUNBOOKS for block in blocks(page, "sql")]
    assert len(statements) > 8
    for statement in statements:
        await pool.query(statement)


@pytest.mark.parametrize("what", monitoring.FILES)
def test_the_command_prints_the_file(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["monitoring", what]) == 0
    assert capsys.readouterr().out == monitoring.text_of(what)


def test_the_command_refuses_an_address_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["monitoring", "rules", "--runbooks", "wiki"]) == 2
    assert "--runbooks" in capsys.readouterr().err


def test_the_files_are_part_of_the_package() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["duly"]
    package = ROOT / "src/duly"
    packaged = {file for pattern in built for file in package.glob(pattern)}
    assert {package / "monitoring" / name for name in monitoring.FILES.values()} <= packaged
