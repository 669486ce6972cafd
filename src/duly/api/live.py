"""The live page, its data, and the probes: everything that is served outside `/api/v1`, except `/metrics`."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duly.api.access import needs, principal_of
from duly.api.declared import declared_page
from duly.api.responses import json_response
from duly.errors import DulyError, StoreUnavailable
from duly.formats import time_text
from duly.model import ClusterStatus, Job, Run
from duly.operations import Operations, Principal, StoreOperations
from duly.operations.notices import Notice, declared_notices, notices_of
from duly.operations.upcoming import upcoming
from duly.timing import Fuel

MAX_SHOWN = 50
UPCOMING = 3
_MAX_ERROR = 500
# Notices that the page shows; it says how many more there are.
MAX_NOTICES = 10
# Seconds for which the notices about declared jobs are reused.
_NOTED_SECONDS = 5.0
# Seconds for which an answer is reused: however many pages are open, the store is asked about once per second, which is
# how often pages poll.
_FRESH_SECONDS = 0.8
_READY_SECONDS = 5

_PAGES = {"index.html": "/", "docs.html": "/docs"}
_MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_FILES = ("index.html", "page.js", "page.css", "docs.html", "docs.js", "docs.css")
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><circle cx="16" cy="16" r="13" fill="none" '
    'stroke="#3b6fd6" stroke-width="4"/><path d="M16 8v8l6 4" fill="none" stroke="#3b6fd6" stroke-width="4" '
    'stroke-linecap="round" stroke-linejoin="round"/></svg>'
)

Endpoint = Callable[[Request], Awaitable[Response]]


def make_routes(operations: StoreOperations) -> list[Route]:
    """Not in the OpenAPI description: the data of the live page may change with any release."""
    live = Live(operations)

    @needs()
    async def healthz(_: Request) -> Response:
        return json_response({"status": "ok"})

    @needs()
    async def readyz(_: Request) -> Response:
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await operations.cluster.ready()
        except TimeoutError as error:
            raise StoreUnavailable(f"the store did not answer within {_READY_SECONDS} s") from error
        except StoreUnavailable:
            raise
        except DulyError as error:
            # The store answers, but is not the one that this Duly needs: for a probe that is just as unready.
            raise StoreUnavailable(str(error)) from error
        return json_response({"status": "ready"})

    @needs("read")
    async def show_live(request: Request) -> Response:
        return json_response(await live.document(principal_of(request)))

    static = files("duly.api") / "static"
    routes = [
        declared_page("/healthz", healthz),
        # As a scheduler and a worker have them. This process serves when its start is over.
        declared_page("/livez", healthz),
        declared_page("/startupz", healthz),
        declared_page("/readyz", readyz),
        declared_page("/live", show_live),
        declared_page("/static/icon.svg", _file(_ICON.encode(), "image/svg+xml")),
    ]
    for name in _FILES:
        media_type = _MEDIA_TYPES["." + name.rpartition(".")[2]]
        content = (static / name).read_bytes()
        routes.append(declared_page(_PAGES.get(name, f"/static/{name}"), _file(content, media_type)))
    return routes


def _file(content: bytes, media_type: str) -> Endpoint:
    tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}

    @needs()
    async def send_file(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return send_file


class Live:
    """The data of the live page, shared by all pages of a tenant that ask within the same second."""

    def __init__(self, operations: StoreOperations) -> None:
        self._operations = operations
        # By tenant and role. Requests that come while the same data is being read get the same answer or error; a slow
        # read of one tenant delays no other tenant.
        self._looking: dict[tuple[str, bool], asyncio.Task[dict[str, Any]]] = {}
        # Each answer with the monotonic time until which it is fresh.
        self._looks: dict[tuple[str, bool], tuple[float, dict[str, Any]]] = {}
        # By tenant: the notices about declared jobs, which change with deploys.
        self._noted: dict[str, tuple[float, list[Notice]]] = {}

    async def document(self, who: Principal) -> dict[str, Any]:
        kind = who.tenant, who.role == "admin"
        fresh_until, document = self._looks.get(kind, (0.0, {}))
        if time.monotonic() >= fresh_until:
            # Shielded: closing one page must not cancel the read for the others.
            document = await asyncio.shield(self._look_of(kind))
        # Countdowns need the time of this answer, not the time of the read.
        return {"now": time_text(self._operations.now()), **document}

    def _look_of(self, kind: tuple[str, bool]) -> asyncio.Task[dict[str, Any]]:
        if kind not in self._looking:
            self._looking[kind] = asyncio.create_task(self._remembered(kind), name=f"duly-look-{kind[0]}")
        return self._looking[kind]

    async def _remembered(self, kind: tuple[str, bool]) -> dict[str, Any]:
        try:
            document = await self._look(*kind)
        finally:
            del self._looking[kind]
        now = time.monotonic()
        self._looks = {other: look for other, look in self._looks.items() if now < look[0]}
        self._looks[kind] = now + _FRESH_SECONDS, document
        return document

    async def _look(self, tenant: str, whole_store: bool) -> dict[str, Any]:
        operations = self._operations.for_tenant(tenant)
        page, runs, status, noted = await asyncio.gather(
            operations.jobs.page(status="active", limit=MAX_SHOWN, payload=False),
            operations.runs.recent(limit=MAX_SHOWN),
            operations.cluster.status(),
            self._declared(operations),
        )
        # Other tenants' jobs are nobody's business here, an admin's neither: the page is about one tenant.
        notices = notices_of(one for one in status.unrunnable if one.tenant == tenant) + noted
        if not whole_store:
            status = replace(status, counts=await operations.counts())
        # One amount of fuel for the whole page: jobs that it does not reach show their next occurrence alone.
        fuel = Fuel.for_list(MAX_SHOWN * UPCOMING)
        return {
            "jobs": [_job(job, fuel) for job in page.items],
            "runs": [_run(run) for run in runs],
            "status": _status(status),
            "notices": [_notice(one) for one in notices[:MAX_NOTICES]],
            "more_notices": max(0, len(notices) - MAX_NOTICES),
        }

    async def _declared(self, operations: Operations) -> list[Notice]:
        now, tenant = time.monotonic(), operations.tenant
        fresh_until, notices = self._noted.get(tenant, (0.0, []))
        if now >= fresh_until:
            notices = declared_notices(await operations.declarations.noted())
            self._noted = {other: noted for other, noted in self._noted.items() if now < noted[0]}
            self._noted[tenant] = now + _NOTED_SECONDS, notices
        return notices


def _notice(notice: Notice) -> dict[str, Any]:
    return {
        "kind": notice.kind,
        "job_id": str(notice.job_id),
        "message": notice.message,
        "next_step": notice.next_step,
        "wrong": notice.wrong,
    }


def _job(job: Job, fuel: Fuel) -> dict[str, Any]:
    try:
        moments = [one.scheduled_at for one in upcoming(job, count=UPCOMING, fuel=fuel) if not one.dropped]
    except (DulyError, ArithmeticError, TypeError, ValueError):
        # One job that cannot be planned, for instance because its zone is gone, must not break the page.
        moments = [] if job.next_run_at is None else [job.next_run_at]
    return {
        "job_id": str(job.job_id),
        "name": job.name,
        "schedule": job.schedule,
        "timezone": job.timezone,
        "queue": job.queue,
        "status": job.status,
        "status_reason": job.status_reason,
        "next_run_at": time_text(job.next_run_at),
        "upcoming": [time_text(moment) for moment in moments],
        "last_run_at": time_text(job.last_run_at),
    }


def _run(run: Run) -> dict[str, Any]:
    error = None
    if run.error is not None:
        error = {"type": run.error.type, "message": run.error.message[:_MAX_ERROR]}
    return {
        "run_id": run.run_id,
        "job_id": str(run.job_id),
        "job_name": run.job_name,
        "scheduled_at": time_text(run.scheduled_at),
        "status": run.status,
        "attempt": run.attempt,
        "started_at": time_text(run.started_at),
        "finished_at": time_text(run.finished_at),
        "missed": run.missed,
        "deduplicated": run.deduplicated,
        "error": error,
        "note": run.note,
    }


def _status(status: ClusterStatus) -> dict[str, Any]:
    counts = status.counts
    return {
        "counts": {
            "jobs": counts.jobs,
            "queued": counts.queued,
            "running": counts.running,
            "retrying": counts.retrying,
            "waiting": counts.waiting,
            "dead_letters": counts.dead_letters,
            "overdue": counts.overdue,
            "oldest_overdue_at": time_text(counts.oldest_overdue_at),
        },
        "at_least": list(counts.at_least),
        "nodes": [
            {
                "node_id": str(node.node_id),
                "kind": node.kind,
                "name": node.name,
                "version": node.version,
                "started_at": time_text(node.started_at),
                "stopped_at": time_text(node.stopped_at),
                "alive": node.alive,
                "shards": node.shards,
                "held": node.held,
            }
            for node in status.nodes
        ],
    }
