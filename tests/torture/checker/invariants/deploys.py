"""Declared jobs are as the newest deploy declares them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..facts import Facts
from ..finding import Finding, moment

NAME = "deploys"
# What a change by a deploy notes, and the names that one job of `shop_app` has had.
_DEPLOY = re.compile(r"deploy (\d+) of app 'shop'")
_RENAMED = "declared:shop_report_"


def check(facts: Facts) -> Iterator[Finding]:
    """An older deploy never changes a job after a newer one, and a renamed job stays one job.

    Every change of a declared job says which deploy made it.
    """
    for job in facts.jobs.values():
        called = f"{facts.job_called(job.job_id)}, no run"
        newest, noted = 0, None
        for version in job.versions:
            for change in version.changes:
                if change["what"] != "redefined":
                    continue
                at = version.transaction.at
                reason = (change.get("detail") or {}).get("reason")
                found = _DEPLOY.fullmatch(str(reason))
                if found is None:
                    yield Finding(
                        NAME,
                        f"{called}: redefined at {moment(at)} by {reason!r}",
                        [change],
                    )
                elif int(found[1]) < newest:
                    yield Finding(
                        NAME,
                        f"{called}: redefined at {moment(at)} by {reason}, after deploy {newest}",
                        [*([] if noted is None else [noted]), change],
                        at=at,
                        job_id=job.job_id,
                    )
                else:
                    newest, noted = int(found[1]), change
    renamed = [row for row in facts.records.table("jobs") if str(row.get("dedupe_key")).startswith(_RENAMED)]
    if len(renamed) > 1:
        called = ", ".join(facts.job_called(str(row["job_id"])) for row in renamed)
        yield Finding(
            NAME,
            f"{called}, no run: {len(renamed)} jobs at {moment(facts.settled)} instead of one that was renamed",
            renamed,
        )
