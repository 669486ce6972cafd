"""The rules, judged by Prometheus' own promtool: each alert fires on its fault, not below it, and resolves after it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from duly import monitoring
from duly.store.stores import MAX_COUNTED
from monitoring.promtool import check, needs_promtool

RULES = Path(monitoring.__file__).parent / "rules.yml"
RUNBOOKS = Path(__file__).parents[2] / "docs/runbooks"
GROUPS: list[dict[str, Any]] = yaml.safe_load(monitoring.rules())["groups"]
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule
}

pytestmark = needs_promtool

# Minutes of each part of a case: all well, a fault that does not suffice, the fault, all well.
WELL, BELOW, FAULT, AFTER = 20, 30, 40, 40
Levels = tuple[float, float, float]


def minutes(well: float, below: float, fault: float) -> list[float]:
    """The level of each minute."""
    return [well] * WELL + [below] * BELOW + [fault] * FAULT + [well] * AFTER


def gauge(*levels: float) -> str:
    return " ".join(f"{level:g}" for level in minutes(*levels))


def counter(*per_minute: float) -> str:
    total, values = 0.0, ["0"]
    for rate in minutes(*per_minute):
        total += rate
        values.append(f"{total:.10g}")
    return " ".join(values)


def lag(slow: Levels, *, limit: float) -> dict[str, str]:
    """A hundred starts a minute in each of two workers, some of them later than `limit` seconds (1 or 30)."""
    quick: Levels = (100 - slow[0], 100 - slow[1], 100 - slow[2])
    series = {}
    for worker in ("w1", "w2"):
        for bound in ("0.25", "1.0", "30.0", "60.0", "+Inf"):
            counted = (100, 100, 100) if float(bound) > limit else quick
            series[f'duly_schedule_lag_seconds_bucket{{cluster="prod",instance="{worker}",le="{bound}"}}'] = counter(
                *counted
            )
        series[f'duly_schedule_lag_seconds_count{{cluster="prod",instance="{worker}"}}'] = counter(100, 100, 100)
    return series


def attempts(failed: Levels) -> dict[str, str]:
    """A thousand attempts a minute, some of which fail: a half of those is retried."""
    half: Levels = (failed[0] / 2, failed[1] / 2, failed[2] / 2)
    well: Levels = (1000 - failed[0], 1000 - failed[1], 1000 - failed[2])
    return {
        'duly_retries_total{cluster="prod",instance="w1"}': counter(*half),
        'duly_runs_total{cluster="prod",instance="w1",status="dead"}': counter(*half),
        'duly_runs_total{cluster="prod",instance="w1",status="succeeded"}': counter(*well),
        'duly_runs_total{cluster="prod",instance="w1",status="skipped"}': counter(5, 5, 5),
    }


def nodes(*, schedulers: Levels, workers: Levels) -> dict[str, str]:
    kinds = {"scheduler": schedulers, "worker": workers}
    return {f'duly_live_nodes{{cluster="prod",kind="{kind}"}}': gauge(*levels) for kind, levels in kinds.items()}


def growing(*per_minute: float) -> str:
    """A queue of 50 runs that grows, and is empty after the fault."""
    depth, values = 50.0, []
    for minute, rate in enumerate(minutes(*per_minute)):
        depth = 50 if minute >= WELL + BELOW + FAULT else depth + rate
        values.append(f"{depth:g}")
    return " ".join(values)


@dataclass(frozen=True)
class Case:
    alert: str
    series: Mapping[str, str]
    #: Minutes from the fault's begin until the alert certainly fires, and from its end until it certainly does not.
    within: int
    #: The figure in its description, at that minute.
    figure: str
    resolves: int = 6
    labels: Mapping[str, str] = field(default_factory=lambda: {"cluster": "prod"})
    #: Minutes from the fault's begin in which it does not fire yet.
    silent: int = 0

    def __str__(self) -> str:
        return self.alert


CASES = [
    Case("DulyStartLagHigh", lag((0, 0.9, 50), limit=30), 12, "59.4s", silent=4),
    Case("DulyStartLagBudgetBurnsFast", lag((0, 14, 40), limit=1), 30, "40%"),
    Case("DulyStartLagBudgetBurns", lag((0, 5.9, 20), limit=1), 30, "20%", resolves=30),
    Case(
        "DulyOldestRunWaits",
        {'duly_oldest_waiting_seconds{cluster="prod"}': gauge(0, 60, 90)},
        6, "1m 30s", 1, silent=4,
    ),
    Case(
        "DulyQueueGrows",
        {'duly_queue_depth{cluster="prod",queue="mail"}': growing(0, 1, 60)},
        7, "560", 7, {"cluster": "prod", "queue": "mail"}, 4,
    ),
    Case(
        "DulyWorkersSaturated",
        {
            'duly_worker_utilization{cluster="prod",job="duly-worker",instance="w1"}': gauge(0.1, 0.95, 1),
            'duly_worker_utilization{cluster="prod",job="duly-worker",instance="w2"}': gauge(0.1, 0.6, 0.8),
        },
        11, "90%", 1, {"cluster": "prod", "job": "duly-worker"}, 9,
    ),
    Case("DulyFailureRateHigh", attempts((0, 9, 20)), 12, "2%", silent=4),
    Case("DulyFailureBudgetBurnsFast", attempts((0, 140, 400)), 30, "40%"),
    Case("DulyFailureBudgetBurns", attempts((0, 55, 200)), 30, "20%", resolves=30),
    Case("DulyDeadLettersGrow", attempts((0, 18, 40)), 11, "200", resolves=6),
    Case("DulyShardsWithoutLeader", {'duly_shards_unowned{cluster="prod"}': gauge(0, 0, 7)}, 2, "7", 1),
    Case(
        "DulyNoLiveScheduler",
        nodes(schedulers=(2, 1, 0), workers=(2, 2, 2)),
        2, "0", 1,
    ),
    Case(
        "DulyNoLiveWorker",
        nodes(schedulers=(2, 2, 2), workers=(2, 1, 0)),
        2, "0", 1,
    ),
    Case("DulyOldestJobDue", {'duly_oldest_due_seconds{cluster="prod"}': gauge(0, 29, 75)}, 3, "1m 15s", 1, silent=1),
    Case(
        "DulyJobsWithoutWorker",
        {'duly_unrunnable_jobs{cluster="prod",kind="task"}': gauge(0, 0, 3)},
        11, "3", 1, {"cluster": "prod", "kind": "task"}, 9,
    ),
    Case(
        "DulyApiAway",
        {
            'up{cluster="prod",job="duly-api",instance="a1"}': gauge(1, 0, 0),
            'up{cluster="prod",job="duly-api",instance="a2"}': gauge(1, 1, 0),
        },
        2, "", 1,
    ),
]  # fmt: skip


def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    assert f"{sum(len(group['rules']) for group in GROUPS)} rules found" in check("promtool", "check", "rules", RULES)


def test_every_alert_has_a_case_here() -> None:
    assert [case.alert for case in CASES] == sorted(ALERTS, key=[case.alert for case in CASES].index)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_fires_on_its_fault_and_not_below_it_and_resolves(case: Case, tmp_path: Path) -> None:
    began, ended = WELL + BELOW, WELL + BELOW + FAULT
    silent = [*range(1, began + case.silent), *range(ended + case.resolves, ended + AFTER)]
    judged = [
        {"alertname": case.alert, "eval_time": f"{minute}m", "exp_alerts": _expected(case, minute, began, ended)}
        for minute in sorted({*silent, began + case.within, ended - 1})
        if minute != ended - 1 or not _changes(case)
    ]
    _judge(tmp_path, case.series, judged)


def _changes(case: Case) -> bool:
    """Whether its figure changes during the fault, so that only one of its minutes is compared."""
    return case.alert == "DulyQueueGrows"


def _expected(case: Case, minute: int, began: int, ended: int) -> list[dict[str, Any]]:
    if not began + case.within <= minute < ended:
        return []
    rule = ALERTS[case.alert]
    said = re.sub(r"\{\{ \$value.*?\}\}", case.figure, rule["annotations"]["description"])
    notes = {**rule["annotations"], "description": said}
    for name, value in case.labels.items():
        notes = {key: text.replace(f"{{{{ $labels.{name} }}}}", value) for key, text in notes.items()}
    return [{"exp_labels": {**rule["labels"], **case.labels}, "exp_annotations": notes}]


def _judge(folder: Path, series: Mapping[str, str], judged: Sequence[Mapping[str, Any]]) -> None:
    shutil.copy(RULES, folder / "rules.yml")
    document = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "group_eval_order": [group["name"] for group in GROUPS],  # else the order changes from run to run
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": list(judged),
            }
        ],
    }
    (folder / "test.yml").write_text(yaml.safe_dump(document))
    check("promtool", "test", "rules", folder / "test.yml")


def test_an_api_that_is_not_scraped_at_all_counts_as_away(tmp_path: Path) -> None:
    case = Case("DulyApiAway", {}, 0, "", labels={"job": "duly-api"})
    _judge(tmp_path, {"up": gauge(1, 1, 1)}, [
        {"alertname": "DulyApiAway", "eval_time": "5m", "exp_alerts": _expected(case, 50, 50, 60)}
    ])  # fmt: skip


def test_redriven_letters_and_letters_of_workers_that_nobody_scrapes_count(tmp_path: Path) -> None:
    gone = {'duly_dead_letters{cluster="prod"}': gauge(0, 0, 0).replace("0", "7", 1)}
    counted = {'duly_runs_total{cluster="prod",status="dead"}': counter(0, 0, 30)}
    case = Case("DulyDeadLettersGrow", {}, 11, "300")
    expected = {"alertname": "DulyDeadLettersGrow", "eval_time": "65m", "exp_alerts": _expected(case, 65, 50, 90)}
    _judge(tmp_path, {**gone, **counted}, [expected])
    unseen = {'duly_dead_letters{cluster="prod"}': counter(0, 0, 30)}
    _judge(tmp_path, unseen, [expected])


def test_a_queue_that_is_too_long_to_be_counted_still_counts_as_growing(tmp_path: Path) -> None:
    case = Case("DulyQueueGrows", {}, 7, "100k", labels={"cluster": "prod", "queue": "mail"})
    series = {'duly_queue_depth{cluster="prod",queue="mail"}': gauge(0, MAX_COUNTED, MAX_COUNTED)}
    _judge(tmp_path, series, [
        {"alertname": "DulyQueueGrows", "eval_time": "80m", "exp_alerts": _expected(case, 80, 50, 90)}
    ])  # fmt: skip


def test_a_few_slow_starts_and_failures_of_a_quiet_cluster_burn_no_budget(tmp_path: Path) -> None:
    """One run every five minutes, all of them late and failing, for 40 minutes."""
    lags = lag((0, 0, 100), limit=1)
    rare = {name: " ".join(str(int(float(value) / 1000)) for value in text.split()) for name, text in lags.items()}
    failures = {
        name: " ".join(str(int(float(value) / 5000)) for value in text.split())
        for name, text in attempts((0, 0, 1000)).items()
    }
    judged = [
        {"alertname": f"Duly{what}BudgetBurns{fast}", "eval_time": f"{minute}m", "exp_alerts": []}
        for what in ("StartLag", "Failure")
        for fast in ("", "Fast")
        for minute in range(1, WELL + BELOW + FAULT + AFTER)
    ]
    _judge(tmp_path, {**rare, **failures}, judged)


def test_a_cluster_in_which_nothing_happens_is_well(tmp_path: Path) -> None:
    """Ratios of nothing are no figures, and absent figures of processes that do not run yet are no alarm."""
    series = {
        'up{job="duly-api"}': gauge(1, 1, 1),
        'duly_live_nodes{kind="scheduler"}': gauge(1, 1, 1),
        'duly_live_nodes{kind="worker"}': gauge(1, 1, 1),
        "duly_shards_unowned": gauge(0, 0, 0),
        'duly_runs_total{status="succeeded"}': gauge(0, 0, 0),
        'duly_runs_total{status="dead"}': gauge(0, 0, 0),
        "duly_retries_total": gauge(0, 0, 0),
        "duly_schedule_lag_seconds_count": gauge(0, 0, 0),
        'duly_schedule_lag_seconds_bucket{le="1.0"}': gauge(0, 0, 0),
        'duly_schedule_lag_seconds_bucket{le="+Inf"}': gauge(0, 0, 0),
    }
    judged = [{"alertname": name, "eval_time": f"{at}m", "exp_alerts": []} for name in ALERTS for at in (10, 60, 120)]
    _judge(tmp_path, series, judged)


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_how_bad_it_is_what_it_is_and_where_to_read_on(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{alert}.md"
    page = (RUNBOOKS / f"{alert}.md").read_text()
    assert page.startswith(f"# {alert}\n")
    headings = re.findall(r"(?m)^## (.*)", page)
    assert headings == ["What it means", "What users feel", "How to look", "What to do", "When it resolves"]


def test_every_runbook_is_of_an_alert() -> None:
    assert {page.stem for page in RUNBOOKS.glob("*.md")} == {*ALERTS, "README"}
    index = (RUNBOOKS / "README.md").read_text()
    assert set(re.findall(r"\]\((\w+)\.md\)", index)) == set(ALERTS)


def test_runbooks_may_be_kept_elsewhere() -> None:
    moved = yaml.safe_load(monitoring.rules(runbooks="https://wiki.example/duly/"))
    found = [
        rule["annotations"]["runbook_url"] for group in moved["groups"] for rule in group["rules"] if "alert" in rule
    ]
    assert found == [f"https://wiki.example/duly/{alert}.md" for alert in ALERTS]
