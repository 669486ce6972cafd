"""An application that declares jobs. They differ from deploy to deploy, which DULY_DEPLOY names by its number."""

from __future__ import annotations

import os

from duly import Duly

from .torture_app import SHOP_TASKS, quick

DEPLOY = int(os.environ["DULY_DEPLOY"])

app = Duly(name="shop")
for task in SHOP_TASKS:
    app.task(task)(quick)

_declare = {"max_retries": 6, "retry_backoff": "immediate", "timeout_seconds": 60, "overlap": "parallel"}
# A job whose schedule and payload change with each deploy, one that is renamed, and one that only this deploy has.
app.cron(f"*/{2 + DEPLOY % 2} * * * * *", name="shop_tick", payload={"seconds": DEPLOY / 1000}, **_declare)(quick)  # type: ignore[arg-type]
app.cron(
    "*/2 * * * * *", name=f"shop_report_{DEPLOY}", renamed_from=[f"shop_report_{n}" for n in range(DEPLOY - 1, 0, -1)],
    **_declare,  # type: ignore[arg-type]
)(quick)  # fmt: skip
app.cron("*/3 * * * * *", name=f"shop_extra_{DEPLOY}", **_declare)(quick)  # type: ignore[arg-type]
