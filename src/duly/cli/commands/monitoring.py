"""`duly monitoring …`: the rules, examples and dashboard with which Prometheus, Alertmanager and Grafana watch Duly."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from duly.cli.output import examples, say
from duly.errors import InvalidInput

group = typer.Typer(
    help="Print alert rules for Prometheus, a dashboard for Grafana, and example settings.",
    epilog=examples(
        "duly monitoring rules > duly-rules.yml",
        "duly monitoring rules --runbooks https://wiki.example.com/duly/runbooks > duly-rules.yml",
        "duly monitoring prometheus > prometheus.yml",
        "duly monitoring alertmanager > alertmanager.yml",
        "duly monitoring dashboard > duly-dashboard.json",
    ),
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="monitoring")


@group.command()
def rules(
    runbooks: Annotated[
        str | None,
        typer.Option(
            help="Address of the folder in which you keep the runbook pages (docs/runbooks of Duly's source): the link "
            "of each alert leads there.",
            metavar="URL",
        ),
    ] = None,
) -> None:
    """Print the alert rules for Prometheus: limits and burn rates of the objectives, and the state of the cluster.

    They need the metrics of the API (a key of role monitor), and of schedulers and workers (--health-port), scraped
    under the names that `duly monitoring prometheus` shows. Each alert has a runbook page in docs/runbooks.
    """
    from duly import monitoring

    if runbooks is not None and not re.fullmatch(r"https?://[^\s\"'{}]+", runbooks):
        raise InvalidInput("--runbooks", "must be an address that begins with http:// or https://")
    _show(monitoring.rules(runbooks=runbooks))


@group.command()
def prometheus() -> None:
    """Print an example of Prometheus' settings: the scrape jobs under the names that the rules expect."""
    _example("prometheus")


@group.command()
def alertmanager() -> None:
    """Print an example of Alertmanager's settings: one message for one cause, by grouping and inhibition.

    The receivers are placeholders.
    """
    _example("alertmanager")


@group.command()
def dashboard() -> None:
    """Print a dashboard for Grafana (Dashboards, New, Import). It needs the rules, which record some of its lines."""
    _example("dashboard")


def _example(what: str) -> None:
    from duly import monitoring

    _show(monitoring.text_of(what))


def _show(text: str) -> None:
    say(text.rstrip("\n"))
