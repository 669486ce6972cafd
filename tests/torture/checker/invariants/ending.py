"""At the end nothing is stuck and nothing has leaked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..facts import SECOND, Facts
from ..finding import Finding, moment
from ..records import INFINITY, micros

NAME = "ending"
# Connections of one process of Duly: its pool, a listener, heartbeats, and the handlers' transactions.
_CONNECTIONS_EACH = 20
_SERVICES = ("scheduler", "worker", "api")
# A process may grow in the first quarter of its life. After that it may not exceed one and a half times that size plus
# 100 MiB.
_WARM_UP = 0.25
_GROWTH, _GROWTH_KB = 1.5, 100 * 1024
_LARGEST_KB = 1024 * 1024
# A transaction may be idle this long between two of its statements.
_MOMENT = 2 * SECOND


def check(facts: Facts) -> Iterator[Finding]:
    """After healing and settling no run is stuck, no transaction is idle, connections and memory are bounded, and every
    process is alive."""
    yield from _runs(facts)
    yield from _claims(facts)
    yield from _connections(facts)
    for process in facts.records.final.get("processes") or []:
        yield from _process(process, facts.settled)


def _runs(facts: Facts) -> Iterator[Finding]:
    settled = moment(facts.settled)
    waiting: dict[str, list[dict[str, Any]]] = {}
    busy: set[str] = set()
    for row in facts.records.table("runs"):
        key = (str(row["job_id"]), micros(row["scheduled_at"]))
        run_at = micros(row["run_at"])
        if row["state"] == "waiting" or run_at == INFINITY:
            waiting.setdefault(key[0], []).append(row)
            continue
        busy.add(key[0])
        if run_at < facts.settled:
            yield Finding(
                NAME,
                f"{facts.called(key)}: stuck: {row['state']} since {moment(run_at)}, and at {settled} no worker had "
                "claimed it",
                [row],
            )
    for claim in facts.records.table("claims"):
        busy.update(str(job_id) for job_id in claim["job_ids"])
    for job_id, rows in waiting.items():
        if job_id not in busy:
            key = (job_id, min(micros(row["scheduled_at"]) for row in rows))
            yield Finding(
                NAME, f"{facts.called(key)}: stuck: waiting at {settled}, but no run of the job is active", rows[:5]
            )
    for row in facts.records.table("catch_ups"):
        key = (str(row["job_id"]), micros(row["first_at"]))
        job = facts.jobs.get(key[0])
        if job is None or not job.versions or job.row.get("status") in ("active", "ended"):
            yield Finding(
                NAME,
                f"{facts.called(key)}: stuck: a catch-up of {row['count']} late occurrences is left at {settled}",
                [row],
            )


def _claims(facts: Facts) -> Iterator[Finding]:
    ended = {(str(row["job_id"]), micros(row["scheduled_at"])) for row in facts.records.table("history")}
    for claim in facts.records.table("claims"):
        released = set(claim.get("released") or [])
        for ordinal, (job_id, at) in enumerate(zip(claim["job_ids"], claim["scheduled_ats"], strict=True), start=1):
            key = (str(job_id), micros(at))
            if ordinal not in released and key not in ended:
                yield Finding(
                    NAME,
                    f"{facts.called(key)}: stuck: the claim {claim['claim_id']} of {claim['claimed_at']} holds it at "
                    f"{moment(facts.settled)} "
                    f"(lease until {claim['lease_until']})",
                    [claim],
                )


def _connections(facts: Facts) -> Iterator[Finding]:
    activity = facts.records.final.get("activity") or []
    for row in activity:
        state = str(row.get("state") or "")
        since = row.get("xact_start") or row.get("state_change")
        asked = micros(row.get("now") or facts.records.run.get("ended") or facts.settled / SECOND)
        if state.startswith("idle in transaction") and (since is None or micros(since) < asked - _MOMENT):
            yield Finding(
                NAME,
                f"no job, no run: the connection {row.get('pid')} ({row.get('application_name')}) is {state} since "
                f"{since}: "
                f"{str(row.get('query'))[:200]}",
                [row],
            )
    processes = facts.records.final.get("processes") or []
    services = sum(str(one.get("name", "")).lower().startswith(_SERVICES) for one in processes) or len(processes)
    bound = int(facts.records.settings.get("connection_bound") or _CONNECTIONS_EACH * max(1, services))
    if len(activity) > bound:
        yield Finding(
            NAME,
            f"no job, no run: {len(activity)} connections at {moment(facts.settled)}, {bound} at most expected",
            activity[:10],
        )


def _process(process: dict[str, Any], settled: int) -> Iterator[Finding]:
    called = f"no job, no run: {process.get('name')} (pid {process.get('pid')})"
    if process.get("alive") is False:
        yield Finding(NAME, f"{called} is not alive at {moment(settled)}", [process])
    sizes = [(micros(at), int(kb)) for at, kb in process.get("rss_kb") or [] if kb]
    if not sizes:
        return
    warm = sizes[0][0] + round((sizes[-1][0] - sizes[0][0]) * _WARM_UP)
    before = max(kb for at, kb in sizes if at <= warm)
    at, last = sizes[-1]
    if last > _LARGEST_KB or last > before * _GROWTH + _GROWTH_KB:
        yield Finding(
            NAME,
            f"{called} holds {last} KiB at {moment(at)}; it was {before} KiB at most until {moment(warm)}",
            [{"rss_kb": [list(size) for size in sizes[-20:]]}],
        )
