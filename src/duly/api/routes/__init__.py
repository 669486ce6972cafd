"""The routes under `/api/v1`, as section 9 of the specification lists them. Each endpoint reads its request, calls one
operation and answers with a document. The caller and its tenant come from the API key and from nothing else."""

from __future__ import annotations

from starlette.routing import BaseRoute

from duly.api.routes import audit, batch, cluster, dead_letters, incidents, jobs, monitors, runs
from duly.api.routes.common import PREFIX
from duly.config import Settings

__all__ = ["PREFIX", "make_routes"]


def make_routes(settings: Settings) -> list[BaseRoute]:
    # Before the jobs: `batch` is not the id of one.
    routers = (batch.make_router(batch_limit=settings.batch_max_bytes), jobs.router, runs.router)
    others = (dead_letters.router, monitors.router, cluster.router, audit.router, incidents.router)
    return [route for router in (*routers, *others) for route in router.routes]
