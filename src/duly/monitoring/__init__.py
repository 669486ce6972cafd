"""What a monitoring system needs to watch Duly: rules and examples for Prometheus, Alertmanager and Grafana.

The files lie beside this module and are part of the package; `duly monitoring` prints them. Each alert of the rules has
a page in `docs/runbooks`.
"""

from __future__ import annotations

import re
from pathlib import Path

_HERE = Path(__file__).parent
#: The files, by the word that names them on the command line.
FILES = {
    "rules": "rules.yml",
    "prometheus": "prometheus.yml",
    "alertmanager": "alertmanager.yml",
    "dashboard": "dashboard.json",
}
_RUNBOOK = re.compile(r"(?m)^( +runbook_url: )docs/runbooks/(\w+)\.md$")


def text_of(what: str) -> str:
    """The text of one of the FILES."""
    return (_HERE / FILES[what]).read_text(encoding="utf-8")


def rules(*, runbooks: str | None = None) -> str:
    """The rules. `runbooks`: address of the folder that holds the runbook pages; unset: as in Duly's source."""
    text = text_of("rules")
    if runbooks is None:
        return text
    folder = runbooks.rstrip("/")
    return _RUNBOOK.sub(lambda found: f"{found[1]}{folder}/{found[2]}.md", text)
